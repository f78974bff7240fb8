// The graph view: boxes that open, and what is selected in them.

import { asTable, button, h, link, table } from "./dom.js";
import { drawGraph, drawOver, paths, sourceLines, title } from "./draw.js";
import { NODE, PARTITION, allKeys, emptyScene, firstOpen, hit, layout, next, pathTo } from "./layout.js";
import { Surface } from "./surface.js";
import { number, plural } from "./words.js";

const MOST_ROWS = 300;

export class GraphView {
  constructor(app) {
    this.app = app;
    this.open = new Map(); // step -> keys of open boxes
    this.scene = emptyScene();
    this.step = null;
    this.count = 0;
    this.changed = false;
    this.lines = paths(this.scene);
    this.stamp = "";
    this.marks = { selected: -1, found: new Set(), around: new Set() };
    this.surface = new Surface(
      "Graph. Arrow keys walk, Enter opens or closes",
      this,
    );
    this.kind = h("select", { label: "Which edges", onchange: () => this.rekind() }, h("option", { value: "data" }, "edges: data"), h("option", { value: "order" }, "edges: order of launching"));
    this.legend = h("ul.legend", { label: "Kinds of kernels" });
    this.empty = h("p.nothing", "No graph was captured in this trace.");
    this.asTable = asTable(() => this.rows());
    this.bar = h("div.bar",
      button("Open all", () => this.setAll(true), { title: "Open every box (e)" }),
      button("Close all", () => this.setAll(false), { title: "Close every box (c)" }),
      this.kind,
      this.legend,
    );
    this.element = h("div.graph", this.bar, this.empty, this.surface.element, this.asTable.element);
  }

  draw(context, { ratio }, look, part) {
    const { colours, step, store } = this.app;
    drawGraph(context, ratio, look, part, this.scene, this.lines, colours, step, store);
  }

  over(context, size, look) {
    drawOver(context, size, look, this.scene, this.app.colours, this.app.step, this.marks);
  }

  bounds() {
    return { w: this.scene.width + 28, h: this.scene.height + 48 };
  }

  titleOf(box) {
    return title(box, this.app.step, this.app.store);
  }

  get keys() {
    const { step } = this.app;
    if (!this.open.has(step)) this.open.set(step, firstOpen(step));
    return this.open.get(step);
  }

  /** The trace has grown, or another step is shown. */
  update() {
    const { step } = this.app;
    const count = step.captures.length + step.partitions.length;
    const grown = this.step === step && this.count !== count;
    if (this.step !== step) this.surface.touched = false;
    if (grown && !this.changed) this.open.set(step, firstOpen(step));
    [this.step, this.count] = [step, count];
    this.relay();
    if (!this.surface.touched) this.surface.fit();
    this.fillLegend();
    for (const one of [this.bar, this.surface.element, this.asTable.element]) one.hidden = !count;
    this.empty.hidden = count > 0;
    this.surface.redraw();
  }

  relay() {
    const { w, h: height } = this.surface.size;
    this.scene = layout(this.app.step, this.keys, this.kind.value, w ? Math.max(0.8, Math.min(3, w / height)) : undefined);
    this.lines = paths(this.scene);
    this.surface.redraw();
    this.mark();
    this.asTable.fill();
  }

  rekind() {
    this.relay();
    if (!this.surface.touched) this.surface.fit();
  }

  toggle(box) {
    const before = { x: box.x, y: box.y };
    this.changed = true;
    if (this.keys.has(box.key)) this.keys.delete(box.key);
    else this.keys.add(box.key);
    this.relay();
    const now = this.scene.byKey.get(box.key);
    // The box that was clicked stays where it was on the screen.
    this.surface.look.x += (before.x - now.x) * this.surface.look.scale;
    this.surface.look.y += (before.y - now.y) * this.surface.look.scale;
    this.surface.touched = true;
    if (now.open && !this.surface.sees(now)) {
      const { w, h: height } = this.surface.size;
      this.surface.reveal(now, Math.max(0.3, Math.min(this.surface.look.scale, (w - 30) / now.w, (height - 30) / now.h)));
    }
    this.surface.redraw();
    this.app.announce(`${this.titleOf(now)[0]} ${now.open ? "opened" : "closed"}`);
    return now;
  }

  setAll(open) {
    this.changed = true;
    this.open.set(this.app.step, open ? allKeys(this.app.step) : new Set());
    this.relay();
    this.surface.fit();
    this.app.announce(open ? "everything opened" : "everything closed");
  }

  selectionOf(box) {
    if (box.is === NODE) return { is: "node", capture: box.c, at: box.a };
    if (box.is === PARTITION) return { is: "partition", at: box.at };
    return { is: "group", capture: box.c, a: box.a, b: box.b, key: box.key, title: this.titleOf(box) };
  }

  opens(box) {
    return box.is !== NODE && (box.is !== PARTITION || box.captures.length > 0);
  }

  click(x, y) {
    const box = hit(this.scene, x, y);
    if (!box) return this.app.select(null);
    if (!this.opens(box)) return this.app.select(this.selectionOf(box));
    if (box.open && y > box.y + 34) return this.app.select(this.selectionOf(box));
    this.app.select(this.selectionOf(box));
    return this.toggle(box);
  }

  key(event) {
    const box = this.scene.boxes[this.cursor ?? this.marks.selected] || null;
    if (event.key.startsWith("Arrow")) {
      const to = next(this.scene, box, event.key);
      if (to) this.go(to);
      return true;
    }
    if (event.key === "Enter" || event.key === " ") {
      if (box && this.opens(box)) this.go(this.toggle(box));
      return true;
    }
    if (event.key === "Backspace" && box?.parent) {
      this.go(this.toggle(box.parent));
      return true;
    }
    if (event.key === "e" || event.key === "c") {
      this.setAll(event.key === "e");
      return true;
    }
    return false;
  }

  go(box) {
    this.app.select(this.selectionOf(box));
    this.cursor = box.index;
    if (!this.surface.sees(box)) this.surface.reveal(box, this.surface.look.scale);
    const [first, second] = this.titleOf(box);
    this.app.announce(`${first}, ${second}`);
  }

  hover(x, y) {
    const box = hit(this.scene, x, y);
    this.surface.canvas.style.cursor = box ? "pointer" : "grab";
    if (!box || box.open) return "";
    const capture = box.c >= 0 ? this.app.step.captures[box.c] : null;
    const where = capture ? sourceLines(capture, box.a, box.b) : "";
    return [...this.titleOf(box), where].filter((line, i, all) => line && all.indexOf(line) === i).join("\n");
  }

  /** Open what hides a node, and go there. */
  show(selection) {
    if (selection.is === "partition") {
      const box = this.scene.byKey.get(`p${selection.at}`);
      if (box) this.surface.reveal(box, box.open ? Math.min(1, (this.surface.size.w - 40) / box.w) : undefined);
      return;
    }
    if (selection.is !== "node") return;
    let fresh = false;
    for (const key of pathTo(this.app.step, selection.capture, selection.at)) {
      if (this.keys.has(key)) continue;
      this.keys.add(key);
      fresh = true;
    }
    if (fresh) {
      this.changed = true;
      this.relay();
    }
    const box = this.scene.boxes[this.scene.owner[selection.capture][selection.at]];
    if (box && !this.surface.sees(box)) this.surface.reveal(box);
    else if (box && this.surface.look.scale < 0.5) this.surface.reveal(box);
    this.mark();
  }

  /** Which boxes are selected, found and next to the selected one. */
  mark() {
    const { scene, marks } = this;
    const { selection, highlighted } = this.app;
    marks.selected = -1;
    marks.around = new Set();
    if (selection?.is === "node") marks.selected = scene.owner[selection.capture]?.[selection.at] ?? -1;
    if (selection?.is === "group") marks.selected = scene.byKey.get(selection.key)?.index ?? -1;
    if (selection?.is === "partition") marks.selected = scene.byKey.get(`p${selection.at}`)?.index ?? -1;
    this.cursor = marks.selected;
    if (marks.selected >= 0) {
      marks.around.add(marks.selected);
      for (let k = 0; k < scene.links.length; k += 2) {
        if (scene.links[k] === marks.selected) marks.around.add(scene.links[k + 1]);
        if (scene.links[k + 1] === marks.selected) marks.around.add(scene.links[k]);
      }
    }
    marks.found = new Set();
    const { pointed, alike } = this.app;
    for (const one of [...highlighted, ...(pointed.length ? pointed : alike)]) {
      if (one.is === "allocation" && !pointed.length) for (const i of this.app.step.captures[one.capture].usersOf(one.at)) marks.found.add(scene.owner[one.capture][i]);
      if (one === selection) continue;
      if (one.is === "node") marks.found.add(scene.owner[one.capture]?.[one.at] ?? -1);
      if (one.is === "partition") marks.found.add(scene.byKey.get(`p${one.at}`)?.index ?? -1);
    }
    marks.found.delete(-1);
    this.surface.remark();
  }

  fillLegend() {
    const counts = new Map();
    for (const capture of this.app.step.captures) {
      for (let i = 0; i < capture.n; i++) counts.set(capture.family(i), (counts.get(capture.family(i)) || 0) + 1);
    }
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    this.legend.replaceChildren(
      ...sorted.map(([family, n]) => {
        const colour = this.app.colours.families[family];
        const swatch = h("i");
        swatch.style.background = colour.fill;
        swatch.style.borderColor = colour.line;
        return h("li", swatch, `${this.app.store.families[family].word} ${number(n)}`);
      }),
    );
  }

  rows() {
    const leaves = this.scene.boxes.filter((box) => !box.open);
    const rows = leaves.slice(0, MOST_ROWS).map((box) => {
      const [first, second] = this.titleOf(box);
      return [link(first, () => this.go(box)), second];
    });
    const more = leaves.length > MOST_ROWS ? h("p", `and ${plural(leaves.length - MOST_ROWS, "more box")}`) : null;
    return [table(["box", "what it is"], rows), more];
  }

  get target() {
    return this.surface.canvas;
  }

  close() {
    this.surface.close();
  }
}
