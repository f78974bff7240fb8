// The timeline: every launch where it was, and below it the one that is looked at, played or walked through.

import { asTable, h, table, tool } from "./dom.js";
import { write } from "./draw.js";
import { drawLaunch, rowHeight, unknown } from "./stage.js";
import { Surface } from "./surface.js";
import { bytes, hex, micros, number, plural, short, tenants } from "./words.js";

const AXIS = 24;
const MOST_ROWS = 60; // slots of one launch that are drawn
const TURN = 450; // milliseconds in which a word turns
const BEAT = 1100; // from launch to launch while they are played
const CLOCKS = { gpu: "time on the GPU", host: "time on the host: when launched, not how long", order: "simulated order, not time" };

export class TimelineView {
  constructor(app) {
    this.app = app;
    this.stamp = "";
    this.at = 0;
    this.step = null;
    this.turned = 1; // how far the words have turned, from 0 to 1
    this.player = 0;
    this.turning = 0;
    this.surface = new Surface(
      "Launches. Left and right walk, space plays",
      this,
      true,
    );
    this.play = tool("▶", "Play", "space", () => this.toggle());
    this.range = h("input", { type: "range", min: 0, label: "Launch", oninput: () => this.go(Number(this.range.value)) });
    this.says = h("span.soft");
    this.canvas = h("canvas", { role: "img" });
    this.stage = h("div.stage", { tabindex: 0, label: "What it wrote" }, this.canvas);
    this.asTable = asTable(() => this.rows());
    this.empty = h("p.nothing", "No launch was recorded here.");
    this.bar = h("div.bar",
      tool("‹", "Previous launch", "←", () => this.go(this.at - 1)),
      this.play,
      tool("›", "Next launch", "→", () => this.go(this.at + 1)),
      this.range,
      this.surface.tools, // on the picture they would cover its last launches
      this.says,
    );
    this.element = h("div.timeline", this.bar, this.empty, this.surface.element, this.stage, this.asTable.element);
    new ResizeObserver(() => this.paintStage()).observe(this.stage);
    /** @type {{clock: string, start: number[], end: number[], length: number}} */
    this.axis = { clock: "order", start: [], end: [], length: 1 };
    /** @type {number[]} */
    this.captures = [];
    /** @type {any[] | undefined} */
    this.found = [];
  }

  bounds() {
    return { w: this.axis.length, h: 1 };
  }

  get launches() {
    return this.app.step.launches;
  }

  update() {
    const { launches, app } = this;
    if (this.step !== app.step) {
      this.stop();
      this.step = app.step;
      // The first one that has an address which a frozen graph would not read, else the first that wrote any.
      const wrote = launches.columns.words_patched.map((words, at) => (words && launches.columns.call[at] ? at : -1)).filter((at) => at >= 0);
      this.at = wrote.slice(0, MOST_ROWS).find((at) => launches.slots(at)?.some((row) => row.first !== row.now)) ?? wrote[0] ?? 0;
      this.surface.touched = false;
    }
    this.axis = launches.axis;
    this.captures = [...launches.perCapture.keys()];
    this.range.max = String(Math.max(0, launches.count - 1));
    for (const one of [this.bar, this.surface.element, this.stage, this.asTable.element]) one.hidden = !launches.count;
    this.empty.hidden = launches.count > 0;
    if (!this.surface.touched) this.surface.fit();
    this.look();
  }

  /** To a launch; its words turn where it is the next one, and whoever wants less motion sees the end at once. */
  go(at) {
    const to = Math.min(Math.max(0, at), this.launches.count - 1);
    if (to < 0) return;
    const near = Math.abs(to - this.at) === 1;
    this.at = to;
    this.turn(near && !matchMedia("(prefers-reduced-motion: reduce)").matches);
    this.app.select({ is: "launch", at: to });
    this.app.announce(this.text(to));
  }

  turn(moving) {
    cancelAnimationFrame(this.turning);
    const began = performance.now();
    const frame = () => {
      this.turned = Math.min(1, (performance.now() - began) / TURN);
      this.paintStage();
      if (this.turned < 1) this.turning = requestAnimationFrame(frame);
    };
    this.turned = 1;
    if (moving) this.turning = requestAnimationFrame(frame);
    this.look();
  }

  toggle() {
    if (this.player) return this.stop();
    if (this.at >= this.launches.count - 1) this.at = -1;
    const next = () => {
      if (this.at >= this.launches.count - 1 || !this.element.isConnected || this.app.view !== "timeline") this.stop();
      else this.go(this.at + 1);
    };
    this.player = window.setInterval(next, BEAT);
    this.signs("❚❚", "Pause");
    return next();
  }

  stop() {
    clearInterval(this.player);
    this.player = 0;
    this.signs("▶", "Play");
  }

  signs(sign, label) {
    this.play.textContent = sign;
    this.play.setAttribute("aria-label", label);
  }

  text(at) {
    const one = this.launches.one(at);
    const words = one.words_patched ? `${plural(one.moved, "slot")} moved, ${plural(one.words_patched, "word")} written` : "nothing written";
    const copied = one.bytes_copied ? `, ${bytes(one.bytes_copied)} copied` : "";
    const took = one.gpu_us === null ? "" : `, ${micros(one.gpu_us)} on the GPU`;
    return `launch ${number(at)}: call ${number(one.call)} of ${this.nameOf(one.capture)}, ${words}${copied}${took}`;
  }

  nameOf(id) {
    const { step } = this.app;
    const capture = step.captures.find((one) => one.id === id);
    const part = step.partitions.find((one) => one.id === capture?.partition);
    return part && part.graph ? `${part.graph}, capture ${id}` : `capture ${id}`;
  }

  /** The slots of the launch with what their users call them, those that moved first. */
  slots(at = this.at) {
    const capture = this.app.step.captures.find((one) => one.id === this.launches.columns.capture[at]);
    return this.launches.slots(at)?.map((row) => {
      const mine = capture ? capture.allocations.filter((one) => one.slot === row.slot) : [];
      const words = mine.reduce((sum, one) => sum + capture.wordsOf(one.at), 0);
      return { ...row, name: tenants(mine, row.slot), words, mine };
    });
  }

  get none() {
    return unknown(this.launches.columns.words_patched[this.at]);
  }

  /** Everything about the launch that is looked at. */
  look() {
    if (!this.launches.count) return;
    this.range.value = String(this.at);
    this.says.textContent = `${this.text(this.at)} · ${CLOCKS[this.axis.clock]}; blue wrote addresses`;
    this.found = this.slots();
    this.surface.redraw();
    this.paintStage();
    this.asTable.fill();
  }

  paintStage() {
    const { canvas, stage, app } = this;
    const w = stage.clientWidth;
    if (!w || !this.launches.count) return;
    const rows = (this.found ?? []).slice(0, MOST_ROWS);
    for (const row of rows) row.marked = app.alike.some(({ is, capture, at }) => is === "allocation" && row.mine.some((one) => one.capture === capture && one.at === at));
    const height = rowHeight * Math.max(1, rows.length) + 44;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) {
      [canvas.width, canvas.height] = [Math.round(w * ratio), Math.round(height * ratio)];
      [canvas.style.width, canvas.style.height] = [`${w}px`, `${height}px`];
    }
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawLaunch(context, w, height, rows, this.turned, app.colours, (this.found?.length ?? 0) - rows.length, this.none);
    const stale = rows.filter((row) => row.first !== row.now).length;
    canvas.setAttribute("aria-label", `${this.text(this.at)}. A graph frozen at its first launch would read ${plural(stale, "stale address")}.`);
  }

  lane() {
    return Math.max(4, Math.min(34, (this.surface.size.h - AXIS - 6) / Math.max(1, this.captures.length)));
  }
  x(us) {
    return us * this.surface.look.scale + this.surface.look.x;
  }

  draw(context, size) {
    const { colours } = this.app;
    const { launches } = this;
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, size.w, size.h);
    const lane = this.lane();
    const lanes = new Map(this.captures.map((id, n) => [id, n]));
    const bar = (at) => {
      const [from, to] = [this.x(this.axis.start[at]), this.x(this.axis.end[at])];
      return [from, AXIS + (lanes.get(launches.columns.capture[at]) ?? 0) * lane + lane * 0.4, Math.max(2, to - from - 0.6), Math.max(2, lane * 0.5)];
    };
    launches.columns.words_patched.forEach((words, at) => {
      const [x, y, w, tall] = bar(at);
      if (x + w < 0 || x > size.w) return;
      context.fillStyle = words ? colours.accent : colours.edge;
      context.fillRect(x, y, w, tall);
    });
    if (lane >= 16) this.captures.forEach((id, n) => write(context, short(this.nameOf(id), 44), 8, AXIS + n * lane + lane * 0.2, colours.soft));
    this.drawAxis(context, size, colours);
    const [x, y, w, tall] = bar(this.at);
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x - 2, y - 2, w + 4, tall + 4);
  }

  drawAxis(context, size, colours) {
    const { clock, length } = this.axis;
    const { scale, x } = this.surface.look;
    const unit = clock === "order" ? number : micros;
    const round = 10 ** Math.floor(Math.log10(110 / scale));
    const by = Math.max(clock === "order" ? 1 : 0, [1, 2, 5, 10].map((n) => n * round).find((us) => us * scale >= 90) ?? round * 10);
    const first = Math.max(0, Math.floor(-x / scale / by) * by);
    for (let us = first; us <= length && this.x(us) < size.w; us += by) {
      context.fillStyle = colours.line;
      context.fillRect(this.x(us), AXIS - 6, 1, size.h);
      write(context, unit(us), this.x(us) + 3, 10, colours.soft);
    }
  }

  find(x, y) {
    const id = this.captures[Math.floor((y - AXIS) / this.lane())];
    const slack = 4 / this.surface.look.scale;
    const { start, end } = this.axis;
    let best = -1;
    for (const at of this.launches.perCapture.get(id)?.at ?? []) {
      if (x < start[at] - slack || x > end[at] + slack) continue;
      if (best < 0 || Math.abs(start[at] - x) < Math.abs(start[best] - x)) best = at;
    }
    return best;
  }

  click(x, y) {
    const at = this.find(x, y);
    if (at >= 0) this.go(at);
  }

  hover(x, y) {
    const at = this.find(x, y);
    this.surface.canvas.style.cursor = at < 0 ? "grab" : "pointer";
    return at < 0 ? "" : this.text(at);
  }

  key(event) {
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: this.launches.count - 1 }[event.key];
    if (to !== undefined) this.go(to);
    else if (event.key === " ") this.toggle();
    else return false;
    return true;
  }

  rows() {
    const rows = (this.found ?? []).slice(0, MOST_ROWS).map((row) => [
      row.name, number(row.words), row.was ? hex(row.was) : "not bound", hex(row.now), row.first === row.now ? `${hex(row.first)}, the same` : `${hex(row.first)}, stale`,
    ]);
    return rows.length ? table(["tensor", "words", "before", "now", "a frozen graph reads"], rows) : h("p", this.none);
  }

  show(selection) {
    if (selection.is !== "launch") return;
    this.at = selection.at;
    this.turn(false);
    const box = this.x(this.axis.start[this.at]);
    if (box < 0 || box > this.surface.size.w) this.surface.pan(this.surface.size.w / 2 - box, 0);
  }

  mark() {
    this.surface.redraw();
    this.paintStage();
  }

  get target() {
    return this.surface.canvas;
  }

  close() {
    this.stop();
    cancelAnimationFrame(this.turning);
    this.surface.close();
  }
}
