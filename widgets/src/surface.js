// A canvas that can be moved, zoomed, clicked and reached by keyboard; what it shows is somebody else's.

import { h, on, tool } from "./dom.js";

const MOST_ZOOM = 3;

export class Surface {
  /**
   * @param {string} label
   * @param view what is asked and told: draw(context, size, look, part) whenever that part of the picture must be made again,
   *   click(x, y), key(event) -> handled, hover(x, y) -> text, bounds() -> size, and over(context, size, look), which draws on
   *   top: with it the picture is kept, and only moved where it can be
   * @param sideways only the horizontal axis moves and zooms
   */
  constructor(label, view, sideways = false) {
    this.on = view;
    this.sideways = sideways;
    this.look = { scale: 1, x: 0, y: 0 };
    this.touched = false;
    this.size = { w: 0, h: 0, ratio: 1 };
    this.canvas = h("canvas", { tabindex: 0, role: "application", label: `${label}, plus and minus zoom, 0 shows everything.` });
    this.tip = h("div.tip", { hidden: true });
    this.hint = h("div.hint", { "aria-hidden": "true" });
    this.tools = h("div.tools", { role: "group", label: "Zoom" },
      tool("+", "Zoom in", "+", () => this.zoom(1.4)),
      tool("−", "Zoom out", "-", () => this.zoom(1 / 1.4)),
      tool("⤢", "Show everything", "0", () => this.fit()),
    );
    this.element = h("div.surface", this.canvas, this.tools, this.tip, this.hint);
    Object.assign(this.element, { picture: this }); // for tests and measurements in a browser
    this.kept = view.over ? document.createElement("canvas") : null; // the picture without what is on top
    /** @type {{scale: number, x: number, y: number} | null} */
    this.keptLook = null;
    this.pending = 0;
    this.quiet = 0;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    /** @type {{x: number, y: number, look: {x: number, y: number}, moved: boolean} | null} */
    let down = null;
    on(canvas, "pointerdown", (event) => {
      if (event.button) return;
      canvas.focus({ preventScroll: true });
      down = { x: event.offsetX, y: event.offsetY, look: { ...this.look }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    on(canvas, "pointermove", (event) => {
      if (!down) return this.hover(event.offsetX, event.offsetY);
      const dx = event.offsetX - down.x;
      const dy = event.offsetY - down.y;
      if (!down.moved && Math.hypot(dx, dy) < 4) return undefined;
      down.moved = this.touched = true;
      this.tip.hidden = true;
      this.look.x = down.look.x + dx;
      if (!this.sideways) this.look.y = down.look.y + dy;
      return this.remark();
    });
    on(canvas, "pointerup", (event) => {
      if (down && !down.moved) this.on.click(...this.at(event.offsetX, event.offsetY), event);
      down = null;
    });
    on(canvas, "pointerleave", () => (this.tip.hidden = true));
    on(
      canvas,
      "wheel",
      (event) => {
        // A page must scroll past the picture; only one that was chosen, or a pinch, zooms.
        if (!event.ctrlKey && !event.metaKey && !canvas.matches(":focus")) {
          this.say("click the picture, or hold Ctrl, to zoom with the wheel");
          return;
        }
        event.preventDefault();
        if (event.shiftKey) return void this.pan(-event.deltaY - event.deltaX, 0);
        this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.008 : 0.0016)), event.offsetX, event.offsetY);
      },
      { passive: false },
    );
  }

  /** What a key does here; whether it does anything. */
  key(event) {
    const pan = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (event.shiftKey && pan) this.pan(pan[0], pan[1]);
    else if ("+=".includes(event.key)) this.zoom(1.3);
    else if (event.key === "-") this.zoom(1 / 1.3);
    else if (event.key === "0") this.fit();
    else return this.on.key(event);
    return true;
  }

  say(text) {
    this.hint.textContent = text;
    this.hint.classList.add("on");
    clearTimeout(this.quiet);
    this.quiet = window.setTimeout(() => this.hint.classList.remove("on"), 1400);
  }

  hover(x, y) {
    const text = this.on.hover(...this.at(x, y));
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    this.tip.style.left = `${Math.min(x + 14, Math.max(0, this.size.w - 300))}px`;
    this.tip.style.top = `${y > this.size.h - 80 ? y - 60 : y + 16}px`;
  }

  at(x, y) {
    return [(x - this.look.x) / this.look.scale, this.sideways ? y : (y - this.look.y) / this.look.scale];
  }

  resize() {
    const { clientWidth: w, clientHeight: height } = this.element;
    if (!w || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (w === this.size.w && height === this.size.h && ratio === this.size.ratio) return;
    this.size = { w, h: height, ratio };
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(height * ratio);
    if (this.touched) this.redraw();
    else this.fit();
  }

  zoom(by, x = this.size.w / 2, y = this.size.h / 2) {
    this.touched = true;
    const { look } = this;
    const scale = Math.min(this.sideways ? 4000 : MOST_ZOOM, Math.max(this.least(), look.scale * by));
    look.x = x - ((x - look.x) * scale) / look.scale;
    if (!this.sideways) look.y = y - ((y - look.y) * scale) / look.scale;
    look.scale = scale;
    this.redraw();
  }

  pan(dx, dy) {
    this.touched = true;
    this.look.x += dx;
    if (!this.sideways) this.look.y += dy;
    this.remark();
  }

  least() {
    const { w, h: height } = this.on.bounds();
    return this.sideways ? this.size.w / w / 2 : Math.min(this.size.w / w, this.size.h / height, 1) / 2;
  }

  fit() {
    const bounds = this.on.bounds();
    this.touched = false;
    if (!this.size.w || !bounds.w) return this.redraw();
    if (this.sideways) {
      this.look = { scale: this.size.w / bounds.w, x: 0, y: 0 };
      return this.redraw();
    }
    const scale = Math.min(1.15, (this.size.w - 24) / bounds.w, (this.size.h - 24) / bounds.h);
    this.look = {
      scale,
      x: (this.size.w - bounds.w * scale) / 2,
      y: Math.max(12, (this.size.h - bounds.h * scale) / 2),
    };
    return this.redraw();
  }

  /** Bring a rectangle of the scene into view, and near enough to be read. */
  reveal(box, scale = Math.max(this.look.scale, 0.85)) {
    this.touched = true;
    const x = this.size.w / 2 - (box.x + box.w / 2) * scale;
    const y = this.size.h / 2 - (box.y + Math.min(box.h, this.size.h / scale) / 2) * scale;
    this.look = { scale, x, y };
    this.redraw();
  }

  sees(box) {
    const { scale, x, y } = this.look;
    const [left, top] = [box.x * scale + x, box.y * scale + y];
    return left >= 0 && top >= 0 && left + box.w * scale <= this.size.w && top + box.h * scale <= this.size.h;
  }

  /** The picture has changed. */
  redraw() {
    this.keptLook = null;
    this.remark();
  }

  /** What is on top has changed, or where we look. */
  remark() {
    if (this.pending || !this.size.w) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  paint() {
    const { size, look } = this;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    if (this.kept) {
      this.keep(this.kept);
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(this.kept, 0, 0);
      this.on.over(context, size, look);
    } else this.on.draw(context, size, look, { x: 0, y: 0, w: size.w, h: size.h });
  }

  /** Bring the kept picture up to date: moved by whole pixels it is moved, and only its new edges are drawn. */
  keep(kept) {
    const { size, look, canvas } = this;
    const { w, h: height, ratio } = size;
    const context = kept.getContext("2d");
    const was = this.keptLook;
    this.keptLook = { ...look };
    const [dx, dy] = was ? [look.x - was.x, look.y - was.y] : [0, 0];
    const whole = (by) => Math.abs(by * ratio - Math.round(by * ratio)) < 1e-3;
    const fits = kept.width === canvas.width && kept.height === canvas.height;
    if (!was || !fits || was.scale !== look.scale || !whole(dx) || !whole(dy) || Math.abs(dx) > w / 2 || Math.abs(dy) > height / 2) {
      if (!fits) [kept.width, kept.height] = [canvas.width, canvas.height];
      return this.on.draw(context, size, look, { x: 0, y: 0, w, h: height });
    }
    if (!dx && !dy) return undefined;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(kept, Math.round(dx * ratio), Math.round(dy * ratio));
    // One pixel more than is new, for screens whose pixels are not ours.
    if (dx) this.strip(context, { x: dx > 0 ? 0 : w + dx - 1, y: 0, w: Math.abs(dx) + 1, h: height });
    if (dy) this.strip(context, { x: 0, y: dy > 0 ? 0 : height + dy - 1, w, h: Math.abs(dy) + 1 });
    return undefined;
  }

  strip(context, part) {
    const { ratio } = this.size;
    context.save();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.beginPath();
    context.rect(part.x, part.y, part.w, part.h);
    context.clip();
    this.on.draw(context, this.size, this.look, part);
    context.restore();
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.pending);
    clearTimeout(this.quiet);
  }
}
