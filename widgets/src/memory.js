// The memory view: pools as envelopes with their blocks as stripes, one step or all steps side by side on one scale.

import { asTable, h, link, table } from "./dom.js";
import { write } from "./draw.js";
import { planStripes, poolStripes } from "./stripes.js";
import { Surface } from "./surface.js";
import { bytes, number, plural, short } from "./words.js";

const TOP = 26; // of a picture, for the axis
const LEFT = 62; // of each panel, for its scale of bytes
const RIGHT = 12;
const GAP = 30; // above each pool, for its name

export class MemoryView {
  constructor(app) {
    this.app = app;
    this.what = "pools";
    this.cache = new Map();
    this.step = null;
    this.options = "";
    this.stamp = "";
    this.surface = new Surface(
      "Memory. Left and right walk",
      this,
      true,
    );
    this.choice = h("select", { label: "Which memory", onchange: (event) => this.choose(event.target.value) });
    this.together = h("input", { type: "checkbox", onchange: () => this.update(true) });
    this.used = h("input", { type: "checkbox", onchange: () => this.update(true) });
    this.sides = h("label.check", this.together, " all steps side by side");
    this.asTable = asTable(() => this.rows());
    this.empty = h("p.nothing", "No allocator events here.");
    this.element = h("div.memory", h("div.bar", this.choice, h("label.check", this.used, " only what is used"), this.sides), this.empty, this.surface.element, this.asTable.element);
  }

  choose(what) {
    this.what = what;
    this.update(true);
  }

  stripes(step) {
    const key = `${this.what} ${this.app.store.steps.indexOf(step)}`;
    const known = this.cache.get(key);
    if (known?.version === step.version) return known.stripes;
    const capture = this.what === "pools" ? null : step.captures[Number(this.what)];
    const empty = { pools: [], length: 0, unit: "", total: null };
    const stripes = this.what === "pools" ? poolStripes(step.events) : capture ? planStripes(capture) : empty;
    this.cache.set(key, { version: step.version, stripes });
    return stripes;
  }

  shown() {
    return this.together.checked && this.app.store.steps.length > 1 ? this.app.store.steps : [this.app.step];
  }

  bounds() {
    return { w: Math.max(1, ...this.shown().map((step) => this.stripes(step).length)), h: 1 };
  }

  update(fit = false) {
    const { step, store } = this.app;
    const options = [["pools", "allocator pools over time"], ...step.captures.map((c, at) => [String(at), `plan of capture ${c.id}`])];
    if (!options.some(([value]) => value === this.what)) this.what = "pools";
    if (!step.events.time.length && this.what === "pools" && step.captures.length && this.step !== step) this.what = "0";
    if (this.options !== options.join()) {
      this.options = options.join();
      this.choice.replaceChildren(...options.map(([value, words]) => h("option", { value }, words)));
    }
    this.choice.value = this.what;
    // Where next to nothing of what is reserved is used, only that can be seen.
    if (this.step !== step) this.used.checked = this.stripes(step).pools.every(({ reach, height }) => reach * 4 < height);
    this.step = step;
    this.sides.hidden = store.steps.length < 2;
    this.empty.hidden = this.shown().some((one) => this.stripes(one).length);
    this.surface.element.style.visibility = this.empty.hidden ? "" : "hidden";
    if (fit || !this.surface.touched) this.surface.fit();
    else this.surface.redraw();
    this.asTable.fill();
  }

  /** Where everything is on the canvas; all steps share the scale of bytes, and the longest one the axis. */
  arrange(size) {
    const steps = this.shown();
    const all = steps.map((step) => this.stripes(step));
    const tall = (pool) => (this.used.checked ? pool.reach : pool.height);
    const most = Math.max(1, ...all.map((s) => s.pools.reduce((sum, pool) => sum + tall(pool), 0)));
    const pools = Math.max(1, ...all.map((s) => s.pools.length));
    const width = size.w / steps.length;
    const heads = steps.map((step, n) => this.heading(steps[1] && step.name, all[n], width - 2 * RIGHT));
    const top = TOP + 14 * Math.max(0, ...heads.map(({ length }) => length - 1));
    const room = size.h - top - 12 - pools * GAP;
    const perByte = Math.max(1, room) / most;
    const panels = [];
    all.forEach((stripes, n) => {
      let y = top;
      for (const [at, pool] of stripes.pools.entries()) {
        y += GAP;
        // Pools share one scale; the parts of a plan do not, or weights would leave nothing of the workspace.
        const height = this.what === "pools" ? Math.max(2, tall(pool) * perByte) : room / pools;
        panels.push({ step: this.app.store.steps.indexOf(steps[n]), pool, at, left: n * width, width, low: y + height, height, perByte: height / Math.max(1, tall(pool)) });
        y += height;
      }
    });
    return { panels, heads, width, all, steps };
  }

  /** What stands above a picture, in as many lines as its width makes of it. */
  heading(name, { length, unit, total }, width) {
    const sums = total ? [`${bytes(total.peakReserved)} peak,`, `${bytes(total.reserved)} at rest`] : ["each part has a scale of its own"];
    const lines = [];
    for (const part of [name && `${name}:`, width > 170 && `${number(length)} ${unit} →${total ? "   all pools:" : ""}`, ...sums]) {
      if (!part || !length) continue;
      const last = lines.length - 1;
      if (last < 0 || (lines[last].length + part.length) * 6 > width) lines.push(part);
      else lines[last] += ` ${part}`;
    }
    return lines;
  }

  x(panel, look, event) {
    return panel.left + LEFT + ((event * look.scale + look.x) / this.surface.size.w) * (panel.width - LEFT - RIGHT);
  }

  draw(context, size, look) {
    const { colours } = this.app;
    const { panels, heads, width } = this.arrange(size);
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, size.w, size.h);
    for (const panel of panels) this.drawPool(context, look, panel, colours);
    heads.forEach((lines, n) => {
      lines.forEach((line, at) => write(context, line, n * width + RIGHT, 14 + 14 * at, colours.soft, { width: width - 2 * RIGHT }));
      if (n) {
        context.strokeStyle = colours.line;
        context.beginPath();
        context.moveTo(n * width, 0);
        context.lineTo(n * width, size.h);
        context.stroke();
      }
    });
  }

  drawPool(context, look, panel, colours) {
    const { pool, left, width, low, height, perByte } = panel;
    const kind = panel.at % colours.stripes.length;
    context.save();
    context.beginPath();
    context.rect(left + LEFT - 1, low - height - 1, width - LEFT - RIGHT + 2, height + 2);
    context.clip();
    context.fillStyle = colours.envelope;
    context.strokeStyle = colours.edge;
    context.lineWidth = 1;
    context.beginPath();
    for (const s of pool.segments) {
      const [x1, x2] = [this.x(panel, look, s.from), this.x(panel, look, s.to)];
      context.rect(x1, low - (s.low + s.size) * perByte, x2 - x1, s.size * perByte);
    }
    context.fill();
    context.stroke();
    const shades = colours.stripes[kind];
    const edge = left + width - RIGHT;
    shades.forEach((shade, n) => {
      context.fillStyle = shade;
      context.beginPath();
      for (let i = n; i < pool.blocks.length; i += shades.length) {
        const b = pool.blocks[i];
        const x1 = this.x(panel, look, b.from);
        const x2 = this.x(panel, look, b.to);
        if (x2 < left || x1 > edge) continue;
        const tall = b.size * perByte;
        context.rect(x1, low - (b.low + b.size) * perByte, Math.max(0.6, x2 - x1), Math.max(0.6, tall > 3 ? tall - 0.6 : tall));
      }
      context.fill();
    });
    if (this.app.alike.length || this.app.pointed.length) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      for (const [at, block] of pool.blocks.entries()) {
        if (!this.isMarked(panel, block, at)) continue;
        const [x1, x2] = [this.x(panel, look, block.from), this.x(panel, look, block.to)];
        context.strokeRect(x1, low - (block.low + block.size) * perByte, Math.max(2, x2 - x1), Math.max(2, block.size * perByte));
      }
    }
    context.restore();
    this.drawScale(context, panel, colours);
    const y = low - height - 13;
    const name = short(pool.name, 30);
    write(context, name, left + RIGHT, y, colours.stripeLines[kind], { size: 12, weight: "600 " });
    const at = left + RIGHT + context.measureText(`${name}  `).width;
    const says =
      this.what === "pools"
        ? width < 480
          ? `${bytes(pool.peakReserved)} peak, ${bytes(pool.reserved)} at rest`
          : `reserved ${bytes(pool.peakReserved)} at the peak, ${bytes(pool.reserved)} at rest; live ${bytes(pool.peakLive)}, ${bytes(pool.live)}`
        : bytes(pool.peakReserved);
    if (at + 200 < left + width) write(context, says, at, y, colours.soft, { width: left + width - at - 4 });
  }

  /** Bytes, from the foot of a panel up. */
  drawScale(context, { left, low, height, perByte }, colours) {
    const by = 2 ** Math.ceil(Math.log2(34 / perByte));
    for (let b = 0; b * perByte <= height; b += by) {
      const y = low - b * perByte;
      context.fillStyle = colours.edge;
      context.fillRect(left + LEFT - 5, y, 4, 1);
      if (height > 12 || !b) write(context, bytes(b), left + LEFT - 8, y, colours.soft, { size: 10, align: "right" });
    }
  }

  /** Whether a block is selected, or pointed at. */
  isMarked(panel, block, at) {
    return [...this.app.alike, ...this.app.pointed].some((one) => this.isThis(panel, block, at, one));
  }

  isThis(panel, block, at, selection) {
    if (selection.is === "allocation") return this.what === String(selection.capture) && block.allocation === selection.at;
    if (selection.is !== "block" || selection.at !== at || this.what !== "pools") return false;
    return selection.step === panel.step && selection.pool === panel.pool.name;
  }

  /** What is under a point of the canvas: x comes in as the axis would have it if one picture were all. */
  find(x, y) {
    const { size, look } = this.surface;
    const px = x * look.scale + look.x;
    for (const panel of this.arrange(size).panels) {
      if (px < panel.left || px > panel.left + panel.width || y > panel.low || y < panel.low - panel.height - GAP) continue;
      if (y < panel.low - panel.height) return { panel, block: -1 };
      const inside = ((px - panel.left - LEFT) / (panel.width - LEFT - RIGHT)) * size.w;
      const event = (inside - look.x) / look.scale;
      const at = (panel.low - y) / panel.perByte;
      let found = panel.pool.blocks.findIndex((b) => event >= b.from && event < b.to && at >= b.low && at < b.low + b.size);
      if (found < 0) {
        // Thin stripes: the nearest one within three pixels.
        const slack = 3 / panel.perByte;
        found = panel.pool.blocks.findIndex((b) => event >= b.from && event < b.to && at >= b.low - slack && at < b.low + b.size + slack);
      }
      return { panel, block: found };
    }
    return null;
  }

  selectionOf({ panel, block }) {
    const { step } = panel;
    if (this.what !== "pools") {
      if (block >= 0) return { is: "allocation", capture: Number(this.what), at: panel.pool.blocks[block].allocation };
      return null;
    }
    if (block < 0) return { is: "pool", step, pool: panel.pool.name };
    return { is: "block", step, pool: panel.pool.name, at: block };
  }

  click(x, y) {
    const found = this.find(x, y);
    this.app.select(found ? this.selectionOf(found) : null);
  }

  hover(x, y) {
    const found = this.find(x, y);
    this.surface.canvas.style.cursor = found ? "pointer" : "grab";
    if (!found) return "";
    return this.blockText(found);
  }

  blockText({ panel: { pool, step }, block }) {
    const b = pool.blocks[block];
    if (!b) return `pool ${pool.name}`;
    const { app } = this;
    const name = b.allocation === undefined ? (app.tenant(step, b) ?? pool.name) : app.allocationName(Number(this.what), b.allocation);
    const call = b.call === null || b.call === undefined ? "" : `call ${b.call}, `;
    return `${name}, ${bytes(b.size)}\n${call}${this.what === "pools" ? "events" : "nodes"} ${b.from}–${b.to}`;
  }

  key(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return false;
    const panels = this.arrange(this.surface.size).panels;
    const all = panels.flatMap((panel) => panel.pool.blocks.map((_, block) => ({ panel, block })));
    if (!all.length) return true;
    const now = JSON.stringify(this.app.selection);
    const at = all.findIndex((one) => JSON.stringify(this.selectionOf(one)) === now);
    const to = all[(at + (event.key === "ArrowRight" ? 1 : -1) + all.length) % all.length];
    this.app.select(this.selectionOf(to));
    this.app.announce(this.blockText(to));
    return true;
  }

  rows() {
    const { panels, all, steps } = this.arrange(this.surface.size);
    const sums = ({ peakReserved, reserved, peakLive, live }) => [peakReserved, reserved, peakLive, live].map(bytes);
    const totals = all.flatMap(({ total }, n) => (total ? [[`${steps[n].name}: all pools`, ...sums(total), ""]] : []));
    const rows = panels.map((panel) => [
      link(panel.pool.name, () => this.app.select(this.selectionOf({ panel, block: -1 }))),
      ...(this.what === "pools" ? sums(panel.pool) : [bytes(panel.pool.peakReserved)]),
      plural(panel.pool.blocks.length, "block"),
    ]);
    return table(["pool", ...(this.what === "pools" ? ["reserved at the peak", "at rest", "live at the peak", "at rest"] : ["bytes"]), "blocks"], [...rows, ...totals]);
  }

  mark() {
    this.surface.redraw();
  }

  get target() {
    return this.surface.canvas;
  }

  close() {
    this.surface.close();
  }
}
