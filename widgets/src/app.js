// The explorer as a whole: five linked views, one selection, one panel, one search.

import { h, solid } from "./dom.js";
import { Frame, NAMES } from "./frame.js";
import { GraphView } from "./graph.js";
import { holds } from "./launches.js";
import { FailuresView, PartitionsView } from "./lists.js";
import { MemoryView } from "./memory.js";
import { details } from "./panel.js";
import { poolStripes } from "./stripes.js";
import sheet from "./style.css";
import { palette, surroundings, watchSurroundings } from "./theme.js";
import { TimelineView } from "./timeline.js";
import { bytes, owner, plural, tenants } from "./words.js";

const THEMES = ["auto", "light", "dark"];
const MOST_PAST = 50;
let instances = 0;

export class App {
  /** @param {{get(name: string): any, set(name: string, value: any): void}} state "view", "step" and "height", kept by whoever mounts this */
  constructor(host, store, state) {
    this.store = store;
    this.state = state;
    this.host = host;
    this.selection = null;
    /** @type {any[]} */
    this.alike = []; // what is selected, by every name that it has: a tensor is a block of the allocator, too
    /** @type {any[]} */
    this.highlighted = [];
    /** @type {any[]} */
    this.pointed = [];
    this.choice = "auto";
    this.id = `pg${++instances}`;
    /** @type {any[]} */
    this.past = [];
    this.pools = null;
    this.was = null;
    /** @type {ShadowRoot} */
    this.root = host.attachShadow({ mode: "open" });
    this.colours = this.paint();
    this.views = { partitions: new PartitionsView(this), graph: new GraphView(this), failures: new FailuresView(this), memory: new MemoryView(this), timeline: new TimelineView(this) };
    this.frame = new Frame(this);
    this.root.append(h("style", sheet), this.frame.element);
    this.unwatch = watchSurroundings(() => this.repaint());
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.update();
  }

  get step() {
    return this.store.steps[this.stepIndex];
  }
  get stepIndex() {
    return Math.min(Math.max(0, this.state.get("step") || 0), this.store.steps.length - 1);
  }
  get view() {
    const chosen = this.state.get("view");
    return chosen in NAMES ? chosen : this.step.telling(this.store.steps.length > 1);
  }

  /** The traces have grown. */
  update() {
    const { step, frame } = this;
    if (this.was !== step) {
      this.selection = null;
      this.alike = [];
      this.highlighted = [];
      this.past = [];
      this.was = step;
    }
    frame.element.style.setProperty("--height", `${this.state.get("height")}px`);
    const { partitions, captures, failures, events, launches } = step;
    const told = {
      partitions: partitions.length ? `${partitions.filter((p) => p.graphed).length}/${partitions.length}` : "",
      graph: captures.reduce((sum, c) => sum + c.n, 0),
      failures: failures.length,
      memory: events.time.length,
      timeline: launches.count,
    };
    for (const [view, count] of Object.entries(told)) frame.counts[view].textContent = count ? count.toLocaleString("en-US") : "";
    frame.tabs.failures.classList.toggle("alarm", failures.length > 0);
    const launched = launches.count ? ` · ${plural(launches.count, "launch")}, ${bytes(launches.bytes)} copied` : "";
    frame.source.replaceChildren(h("span.tag", step.origin), h("span", step.source), h("span.launched", launched));
    frame.stepper.update();
    this.showView();
    if (!this.selection || this.selection.is === "pool") this.fillPanel();
  }

  showView() {
    const focused = this.root.activeElement;
    this.frame.show(this.view);
    // Only the view that is seen is made; the others catch up when they are.
    const view = this.views[this.view];
    const stamp = `${this.stepIndex}/${this.store.version}/${this.choice}`;
    if (view.stamp !== stamp) {
      view.stamp = stamp;
      view.update();
    }
    view.surface?.resize();
    view.mark();
    // What is hidden loses the focus, and keys would go to whatever is around the explorer.
    if (focused && !focused.getClientRects().length) this.frame.tabs[this.view].focus({ preventScroll: true });
  }

  setView(view) {
    const same = view === this.view;
    this.state.set("view", view); // also where it is open already: from now on somebody has chosen it
    if (same) return;
    this.showView();
    if (this.selection) this.views[view].show?.(this.selection);
    this.announce(`${NAMES[view]}`);
  }

  setStep(at) {
    const to = Math.min(Math.max(0, at), this.store.steps.length - 1);
    this.state.set("step", to);
    this.update();
    this.announce(`step ${to + 1} of ${this.store.steps.length}: ${this.step.name}`);
  }

  select(selection, keep = true) {
    const same = JSON.stringify(selection) === JSON.stringify(this.selection);
    if (!same && keep && this.selection) this.past.push(this.selection);
    if (this.past.length > MOST_PAST) this.past.shift();
    if (selection?.step !== undefined && selection.step !== this.stepIndex) this.setStep(selection.step);
    if (selection) this.state.set("view", this.view); // whoever looks at something stays where it is
    this.selection = selection;
    this.alike = selection ? [selection, ...this.same(selection)] : [];
    this.fillPanel();
    this.views[this.view].mark();
  }

  goBack() {
    const last = this.past.pop();
    if (!last) return;
    this.select(last, false);
    this.views[this.view].show?.(last);
  }

  /** Another view, with this selected in it. */
  goTo(view, selection) {
    this.select(selection);
    this.setView(view);
    this.views[view].show?.(selection);
  }

  /** Mark these wherever they are seen. */
  highlight(items) {
    this.highlighted = items;
    this.views[this.view].mark();
  }

  /** What the pointer is on, wherever it is: the views mark it as long as it is there. */
  point(items) {
    this.pointed = items;
    this.views[this.view].mark();
  }

  /** Everything of one line of the user's code. */
  onLine(frame) {
    const items = [];
    this.step.captures.forEach((capture, c) => {
      for (let i = 0; i < capture.n; i++) if (capture.frame(i)?.file === frame.file && capture.frame(i).line === frame.line) items.push({ is: "node", capture: c, at: i });
    });
    return items;
  }

  /** A tensor, and every node that has its address. */
  ofTensor(c, at) {
    return [{ is: "allocation", capture: c, at }, ...this.step.captures[c].usersOf(at).map((i) => ({ is: "node", capture: c, at: i }))];
  }

  /** Attributes of an element that points at something while the pointer or the focus is on it. */
  points(items) {
    const on = () => this.point(items());
    const off = () => this.point([]);
    return { onpointerenter: on, onpointerleave: off, onfocus: on, onblur: off };
  }

  /** Mark these, and go to the view that shows them. */
  highlightIn(view, items) {
    this.setView(view);
    if (items[0]) this.views[view].show?.(items[0]);
    this.highlight(items);
    this.announce(`${items.length} marked`);
  }

  /** Everything that comes from one line of the user's code. */
  showLine(frame) {
    this.frame.finder.ask(`${frame.file}:${frame.line}`);
  }

  showPlan(capture) {
    const { memory } = this.views;
    memory.what = String(capture);
    memory.stamp = "";
    memory.surface.touched = false;
    if (this.view === "memory") this.showView();
    else this.setView("memory");
  }

  allocationName(c, at) {
    const a = this.step.captures[c].allocations[at];
    return a ? owner(a) : `allocation ${at}`;
  }

  poolOf(step, name) {
    const trace = this.store.steps[step];
    if (!this.pools || this.pools.trace !== trace || this.pools.version !== trace.version) {
      this.pools = { trace, version: trace.version, list: poolStripes(trace.events).pools };
    }
    return this.pools.list.find((pool) => pool.name === name);
  }

  /** Who had memory in a block at some launch: slots of captures, and the tensors on them. */
  holders(trace, block) {
    return trace.launches.within(block).flatMap(([id, slot]) => {
      const capture = trace.captures.find((one) => one.id === id);
      return capture ? [{ capture, slot, mine: capture.allocations.filter((one) => one.slot === slot) }] : [];
    });
  }

  /** The first of them in a word. */
  tenant(step, block) {
    const [first] = this.holders(this.store.steps[step], block);
    return first && tenants(first.mine, first.slot);
  }

  /** Other names of what is selected: blocks of a tensor, the tensor of a block. */
  same({ is, step, pool, at, capture: c }) {
    const trace = this.step;
    if (is === "block" && step === this.stepIndex) {
      const one = this.poolOf(step, pool)?.blocks[at];
      const held = one ? this.holders(trace, one).filter(({ mine }) => mine.length === 1) : [];
      return held.map(({ mine: [{ capture, at: place }] }) => ({ is: "allocation", capture, at: place }));
    }
    if (is !== "allocation") return [];
    const { id, allocations } = trace.captures[c];
    const places = trace.launches.bound(id).map(({ moment, now }) => [now[allocations[at].slot], moment]);
    const names = places.length ? new Set(trace.events.pool) : [];
    return [...names].flatMap((name) =>
      this.poolOf(this.stepIndex, name).blocks.flatMap((b, k) => (places.some(([one, moment]) => holds(b, one, moment)) ? [{ is: "block", step: this.stepIndex, pool: name, at: k }] : [])),
    );
  }

  fillPanel() {
    this.frame.panelBody.replaceChildren(...solid(details(this)));
    this.frame.back.hidden = !this.past.length;
    this.frame.panel.scrollTop = 0;
  }

  /** The view that shows something that was found; the one that is open where it can. */
  viewOf(item) {
    return { node: "graph", partition: this.view === "graph" ? "graph" : "partitions", failure: "failures", allocation: this.view }[item.is];
  }

  itemText(item) {
    const { step } = this;
    if (item.is === "partition") return `partition ${step.partitions[item.at].id}, ${step.partitions[item.at].graph}`;
    if (item.is === "failure") return `failure: ${step.failures[item.at].title}`;
    if (item.is === "allocation") return this.allocationName(item.capture, item.at);
    const capture = step.captures[item.capture];
    return `${capture.recorded(item.at)} ${capture.name(item.at)}`;
  }

  letGo() {
    this.frame.finder.clear();
    this.highlighted = [];
    this.past = [];
    this.select(null, false);
  }

  /** Keys do the same wherever the focus is, but where it is on something that takes them itself. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
    const presses = event.key === "Enter" || event.key === " ";
    if (presses && event.target.matches("button, summary")) return;
    if (event.key.startsWith("Arrow") && this.frame.panel.contains(event.target)) return;
    if (!this.command(event.key) && !this.ask(event)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  command(key) {
    const { frame } = this;
    const view = Object.keys(NAMES)[Number(key) - 1];
    if (view) {
      this.setView(view);
      this.views[view].target.focus({ preventScroll: true });
    } else if (key === "/") frame.finder.input.focus();
    else if (key === "Escape") this.letGo();
    else if (key === "p") frame.togglePanel();
    else if (key === "f") frame.toggleWhole();
    else if (key === "[" || key === "]") this.setStep(this.stepIndex + (key === "]" ? 1 : -1));
    else return false;
    return true;
  }

  ask(event) {
    const view = this.views[this.view];
    return view.surface ? view.surface.key(event) : view.key(event);
  }

  announce(text) {
    this.frame.live.textContent = text;
  }

  nextTheme() {
    this.choice = THEMES[(THEMES.indexOf(this.choice) + 1) % THEMES.length];
    this.frame.themeButton.title = `Light or dark: ${this.choice}`;
    this.repaint();
    this.announce(`colours: ${this.choice}`);
  }

  paint() {
    const theme = this.choice === "auto" ? surroundings() : this.choice;
    return palette(this.host, theme, this.store.families);
  }

  repaint() {
    this.colours = this.paint();
    for (const view of Object.values(this.views)) view.stamp = "";
    this.showView();
  }

  close() {
    this.unwatch();
    this.views.graph.close();
    this.views.memory.close();
    this.views.timeline.close();
  }
}
