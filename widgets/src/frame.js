// What stands around the views: tabs, search, the panel with its splitter, the source line.

import { button, h, on, tool } from "./dom.js";
import { Finder } from "./finder.js";
import { Stepper } from "./stepper.js";

const LEAST = 220; // pixels of the views and of the panel
export const NAMES = { partitions: "Partitions", graph: "Graph", failures: "Failures", memory: "Memory", timeline: "Timeline" };

export class Frame {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    /** @type {Record<string, HTMLElement>} */
    this.tabs = {};
    /** @type {Record<string, HTMLElement>} */
    this.counts = {};
    /** @type {Record<string, HTMLElement>} */
    this.places = {};
    this.finder = new Finder(app);
    this.stepper = new Stepper(app);
    this.themeButton = button("◐", () => app.nextTheme(), { label: "Light or dark", title: "Light or dark: auto" });
    this.panelButton = tool("◨", "Details panel", "p", () => this.togglePanel(), { "aria-pressed": "true" });
    this.wholeButton = document.fullscreenEnabled ? tool("▣", "Full screen", "f", () => this.toggleWhole()) : null;
    this.source = h("div.source");
    this.main = h("div.views", { onpointerdown: () => this.finder.hide() });
    for (const [key, view] of Object.entries(app.views)) {
      this.places[key] = h("div.view", { role: "tabpanel", id: `${app.id}-${key}`, "aria-labelledby": `${app.id}-tab-${key}`, hidden: true }, view.element);
      this.main.append(this.places[key]);
    }
    this.back = button("←", () => app.goBack(), { class: "back", label: "Back", title: "Back", hidden: true });
    this.panelBody = h("div");
    this.panel = h("aside.panel", { label: "Details", tabindex: -1 }, this.back, this.panelBody);
    this.split = h("div.split", { role: "separator", tabindex: 0, "aria-orientation": "vertical", label: "Width of the details" });
    this.body = h("div.body", this.main, this.split, this.panel);
    this.listen();
    this.live = h("div.said", { role: "status", "aria-live": "polite" });
    this.element = h("div.app", { role: "region", label: "paramgraph explorer", tabindex: -1 },
      this.stepper.element,
      h("div.head", this.bar(), this.finder.element, this.panelButton, this.wholeButton, this.themeButton),
      this.body,
      this.source,
      this.live,
    );
  }

  bar() {
    const { app } = this;
    const keys = Object.keys(NAMES);
    const bar = h("div.tabs", { role: "tablist", label: "Views" });
    keys.forEach((key, n) => {
      this.counts[key] = h("span.count");
      this.tabs[key] = h("button", { type: "button", role: "tab", id: `${app.id}-tab-${key}`, "aria-controls": `${app.id}-${key}`, title: `${NAMES[key]} (${n + 1})`, onclick: (event) => this.open(key, event.detail) }, NAMES[key], this.counts[key]);
      bar.append(this.tabs[key]);
    });
    on(bar, "keydown", (event) => {
      const side = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!side) return;
      app.setView(keys[(keys.indexOf(app.view) + side + keys.length) % keys.length]);
      this.tabs[app.view].focus();
      event.stopPropagation();
    });
    return bar;
  }

  /** A view, by its tab: whoever clicked it means the view with the next key, whoever pressed Enter the tabs. */
  open(key, clicks) {
    this.app.setView(key);
    if (clicks) this.app.views[key].target.focus({ preventScroll: true });
  }

  listen() {
    const { split } = this;
    let held = false;
    on(split, "pointerdown", (event) => {
      held = true;
      split.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    on(split, "pointermove", (event) => {
      if (held) this.widen(this.body.getBoundingClientRect().right - event.clientX);
    });
    on(split, "pointerup", () => (held = false));
    on(split, "keydown", (event) => {
      const by = { ArrowLeft: 24, ArrowRight: -24 }[event.key];
      if (!by) return;
      this.widen(this.panel.offsetWidth + by);
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** Make the panel `width` pixels wide, as far as both sides stay readable. */
  widen(width) {
    const most = this.body.clientWidth - LEAST;
    this.body.style.setProperty("--panel", `${Math.round(Math.max(Math.min(LEAST, most), Math.min(most, width)))}px`);
  }

  togglePanel() {
    const hidden = this.body.classList.toggle("alone");
    this.panelButton.setAttribute("aria-pressed", String(!hidden));
    this.app.announce(hidden ? "details hidden" : "details shown");
  }

  toggleWhole() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.app.host.requestFullscreen?.();
  }

  /** Which view is seen. */
  show(view) {
    for (const [key, tab] of Object.entries(this.tabs)) {
      tab.setAttribute("aria-selected", String(key === view));
      tab.tabIndex = key === view ? 0 : -1;
      this.places[key].hidden = key !== view;
    }
  }
}
