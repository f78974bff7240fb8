// The explorer as a whole: four linked views, one selection, one panel, one search.

import { button, h, solid, table } from "./dom.js";
import { GraphView } from "./graph.js";
import { FailuresView, PartitionsView } from "./lists.js";
import { MemoryView } from "./memory.js";
import { details } from "./panel.js";
import { search } from "./store.js";
import { poolStripes } from "./stripes.js";
import sheet from "./style.css";
import { palette, surroundings, watchSurroundings } from "./theme.js";
import { bytes, number, owner, plural } from "./words.js";

const NAMES = { "partitions": "Partitions", "graph": "Graph", "failures": "Failures", "memory": "Memory" };
const THEMES = ["auto", "light", "dark"];
let instances = 0;

export class App {
  /** @param state {get(name), set(name, value)} for "view", "step" and "height", kept by whoever mounts this */
  constructor(host, store, state) {
    this.store = store;
    this.state = state;
    this.host = host;
    this.selection = null;
    this.highlighted = [];
    this.choice = "auto";
    this.id = `pg${++instances}`;
    this.past = [];
    const root = host.attachShadow({ mode: "open" });
    this.root = root;
    this.setTheme(false);
    root.append(h("style", sheet), this.frame());
    this.unwatch = watchSurroundings(() => this.setTheme(true));
    root.addEventListener("keydown", (event) => this.key(event));
    this.update();
  }

  get step() {
    return this.store.steps[this.stepIndex];
  }
  get stepIndex() {
    return Math.min(Math.max(0, this.state.get("step") || 0), this.store.steps.length - 1);
  }
  get view() {
    return this.state.get("view") || "partitions";
  }

  frame() {
    this.views = {
      "partitions": new PartitionsView(this),
      "graph": new GraphView(this),
      "failures": new FailuresView(this),
      "memory": new MemoryView(this),
    };
    this.tabs = {};
    this.counts = {};
    const bar = h("div.tabs", { role: "tablist", "aria-label": "Views" });
    Object.entries(NAMES).forEach(([key, name], n) => {
      this.counts[key] = h("span.count");
      this.tabs[key] = h("button", { type: "button", role: "tab", id: `${this.id}-tab-${key}`, "aria-controls": `${this.id}-${key}`, title: `${name} (${n + 1})`, onclick: () => this.setView(key) }, name, this.counts[key]);
      bar.append(this.tabs[key]);
    });
    bar.addEventListener("keydown", (event) => {
      const side = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!side) return;
      const keys = Object.keys(NAMES);
      this.setView(keys[(keys.indexOf(this.view) + side + keys.length) % keys.length]);
      this.tabs[this.view].focus();
      event.stopPropagation();
    });
    this.input = h("input", { type: "search", placeholder: "Search  /", "aria-label": "Search", oninput: () => this.find(), onkeydown: (event) => this.searchKey(event) });
    this.results = h("ul.results", { hidden: true, "aria-label": "Search results" });
    this.themeButton = button("◐", () => this.nextTheme(), { "aria-label": "Light or dark", title: "Light or dark: auto" });
    this.source = h("div.source");
    this.steps = h("div.steps");
    this.main = h("div.views", { onpointerdown: () => (this.results.hidden = true) });
    for (const [key, view] of Object.entries(this.views)) {
      this.main.append(h("div.view", { role: "tabpanel", id: `${this.id}-${key}`, "aria-labelledby": `${this.id}-tab-${key}`, hidden: true }, view.element));
    }
    this.back = button("←", () => this.goBack(), { class: "back", "aria-label": "Back", title: "Back", hidden: true });
    this.panelBody = h("div");
    this.panel = h("aside.panel", { "aria-label": "Details", tabindex: -1 }, this.back, this.panelBody);
    this.live = h("div.said", { role: "status", "aria-live": "polite" });
    this.top = h("div.app", { role: "region", "aria-label": "paramgraph explorer" },
      this.steps,
      h("div.head", bar, h("div.find", this.input, this.results), this.themeButton),
      h("div.body", this.main, this.panel),
      this.source,
      this.live,
    );
    return this.top;
  }

  /** The traces have grown. */
  update() {
    const { step, counts } = this;
    if (this.was !== step) {
      this.selection = null;
      this.highlighted = [];
      this.past = [];
      this.was = step;
    }
    this.top.style.setProperty("--height", `${this.state.get("height")}px`);
    counts["partitions"].textContent = step.partitions.length ? `${step.partitions.filter((p) => p.graphed).length}/${step.partitions.length}` : "";
    const nodes = step.captures.reduce((sum, c) => sum + c.n, 0);
    counts["graph"].textContent = nodes ? number(nodes) : "";
    counts["failures"].textContent = step.failures.length ? String(step.failures.length) : "";
    this.tabs["failures"].classList.toggle("alarm", step.failures.length > 0);
    counts["memory"].textContent = step.events.time.length ? number(step.events.time.length) : "";
    const launched = step.launches.count ? ` · ${plural(step.launches.count, "launch")}, ${bytes(step.launches.bytes)} copied` : "";
    this.source.replaceChildren(h("span.tag", step.origin), h("span", step.source), h("span.launched", launched));
    this.fillSteps();
    this.showView();
    if (!this.selection || this.selection.is === "pool") this.fillPanel();
  }

  showView() {
    for (const [key, tab] of Object.entries(this.tabs)) {
      const mine = key === this.view;
      tab.setAttribute("aria-selected", mine);
      tab.tabIndex = mine ? 0 : -1;
      this.root.getElementById(`${this.id}-${key}`)?.toggleAttribute("hidden", !mine);
    }
    for (const panel of this.main.children) panel.hidden = panel.id !== `${this.id}-${this.view}`;
    // Only the view that is seen is made; the others catch up when they are.
    const view = this.views[this.view];
    const stamp = `${this.stepIndex}/${this.store.version}/${this.choice}`;
    if (view.stamp !== stamp) {
      view.stamp = stamp;
      view.update();
    }
    view.surface?.resize();
    view.mark();
  }

  setView(view) {
    if (view === this.view) return;
    this.state.set("view", view);
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

  fillSteps() {
    const { steps, comparison } = this.store;
    this.steps.hidden = steps.length < 2;
    if (steps.length < 2) return;
    const at = this.stepIndex;
    const focused = this.root.activeElement?.dataset?.["step"];
    const walk = h("div.walk", { role: "group", "aria-label": "Steps" },
      button("‹", () => this.setStep(at - 1), { "aria-label": "Previous step", disabled: at === 0 }),
      steps.map((one, n) => button([h("span.n", String(n + 1)), one.name], () => this.setStep(n), { class: n === at ? "now" : "", "data-step": n, "aria-current": n === at ? "step" : null })),
      button("›", () => this.setStep(at + 1), { "aria-label": "Next step", disabled: at === steps.length - 1 }),
    );
    const rows = (comparison?.facts || []).map((fact) => [
      fact.name,
      ...fact.values.map((value, n) => h("span", { class: `${n === at ? "now" : ""} ${fact.changed[n] ? "changed" : ""} ${value === "not recorded" ? "soft" : ""}` }, value, fact.changed[n] ? h("span.sign", { title: "differs from the step before" }, " ●") : null)),
    ]);
    this.compared = this.compared ?? true;
    const counted = rows.length
      ? h("details", { open: this.compared, ontoggle: (event) => (this.compared = event.target.open) }, h("summary", "what changed, counted in the traces (● differs from the step before)"), h("div.scroll", table(["", ...steps.map((one) => one.name)], rows)))
      : null;
    this.steps.replaceChildren(walk, ...(counted ? [counted] : []));
    if (focused !== undefined) this.steps.querySelector(`[data-step="${focused}"]`)?.focus();
  }

  select(selection, keep = true) {
    const same = JSON.stringify(selection) === JSON.stringify(this.selection);
    if (!same && keep && this.selection) this.past.push(this.selection);
    if (this.past.length > 50) this.past.shift();
    if (selection?.step !== undefined && selection.step !== this.stepIndex) this.setStep(selection.step);
    this.selection = selection;
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

  highlight(items, view) {
    this.highlighted = items;
    if (view && view !== this.view) this.setView(view);
    const first = items[0];
    if (first && view) this.views[view].show?.(first);
    this.views[this.view].mark();
    this.announce(`${items.length} marked`);
  }

  /** Everything that comes from one line of the user's code. */
  showLine(frame) {
    this.input.value = `${frame.file}:${frame.line}`;
    this.find();
    this.input.focus();
  }

  showPlan(capture) {
    this.views["memory"].what = String(capture);
    this.views["memory"].stamp = "";
    this.views["memory"].surface.touched = false;
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

  fillPanel() {
    this.panelBody.replaceChildren(...solid(details(this)));
    this.back.hidden = !this.past.length;
    this.panel.scrollTop = 0;
  }

  find() {
    const { found, total } = search(this.store, this.step, this.input.value);
    this.found = found;
    this.chosen = -1;
    this.results.hidden = !this.input.value.trim();
    const rows = found.slice(0, 30).map((item, n) => h("li", button(this.itemText(item), () => this.take(n), { class: "link clip", tabindex: -1 })));
    const says = total ? `${number(total)} found` : "nothing found";
    this.results.replaceChildren(h("li.soft", total > 30 ? `${says}, the first 30:` : says), ...rows);
    this.highlighted = found;
    this.views[this.view].mark();
    this.announce(this.input.value.trim() ? says : "");
  }

  itemText(item) {
    const { step } = this;
    if (item.is === "partition") return `partition ${step.partitions[item.at].id}, ${step.partitions[item.at].graph}`;
    if (item.is === "failure") return `failure: ${step.failures[item.at].title}`;
    if (item.is === "allocation") return this.allocationName(item.capture, item.at);
    const capture = step.captures[item.capture];
    return `${capture.recorded(item.at)} ${capture.name(item.at)}`;
  }

  take(n, open) {
    const item = this.found[n];
    if (!item) return;
    this.chosen = n;
    this.results.hidden = !open;
    [...this.results.querySelectorAll("button")].forEach((one, k) => one.classList.toggle("now", k === n));
    const view = { "node": "graph", "partition": this.view === "graph" ? "graph" : "partitions", "failure": "failures", "allocation": this.view }[item.is];
    this.goTo(view, item);
    this.announce(this.itemText(item));
  }

  searchKey(event) {
    event.stopPropagation();
    const side = { ArrowDown: 1, ArrowUp: -1, Enter: event.shiftKey ? -1 : 1 }[event.key];
    if (side && this.found?.length) {
      const many = Math.min(30, this.found.length);
      this.take((this.chosen + side + many) % many, event.key !== "Enter");
      event.preventDefault();
    } else if (event.key === "Escape") this.letGo();
  }

  letGo() {
    this.input.value = "";
    this.results.hidden = true;
    this.highlighted = [];
    this.past = [];
    this.select(null, false);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, select")) return;
    const view = Object.keys(NAMES)[Number(event.key) - 1];
    if (view) {
      this.setView(view);
      this.tabs[view].focus();
    } else if (event.key === "/") this.input.focus();
    else if (event.key === "Escape") this.letGo();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  announce(text) {
    this.live.textContent = text;
  }

  nextTheme() {
    this.choice = THEMES[(THEMES.indexOf(this.choice) + 1) % THEMES.length];
    this.themeButton.title = `Light or dark: ${this.choice}`;
    this.setTheme(true);
    this.announce(`colours: ${this.choice}`);
  }

  setTheme(draw) {
    const theme = this.choice === "auto" ? surroundings() : this.choice;
    this.colours = palette(this.host, theme, this.store.families);
    if (!draw) return;
    for (const view of Object.values(this.views)) view.stamp = "";
    this.showView();
  }

  close() {
    this.unwatch();
    this.views["graph"].close();
    this.views["memory"].close();
  }
}
