// The search box, its list of results, and the walk through them.

import { button, h } from "./dom.js";
import { search } from "./search.js";
import { number } from "./words.js";

const MOST_LISTED = 30;

export class Finder {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.input = h("input", { type: "search", placeholder: "Search  /", label: "Search", oninput: () => this.find(), onkeydown: (event) => this.key(event) });
    this.results = h("ul.results", { hidden: true, label: "Search results" });
    this.element = h("div.find", this.input, this.results);
    this.found = [];
    this.chosen = -1;
  }

  /** Search for `text` as if it had been typed. */
  ask(text) {
    this.input.value = text;
    this.find();
    this.input.focus();
  }

  find() {
    const { app } = this;
    const asked = this.input.value.trim();
    const { found, total } = search(app.step, asked);
    this.found = found;
    this.chosen = -1;
    this.results.hidden = !asked;
    const rows = found.slice(0, MOST_LISTED).map((item, n) => h("li", button(app.itemText(item), () => this.take(n), { class: "link clip", tabindex: -1 })));
    const says = total ? `${number(total)} found` : "nothing found";
    this.results.replaceChildren(h("li.soft", total > MOST_LISTED ? `${says}, the first ${MOST_LISTED}:` : says), ...rows);
    app.highlight(found);
    app.announce(asked ? says : "");
  }

  take(n, open = false) {
    const item = this.found[n];
    if (!item) return;
    this.chosen = n;
    this.results.hidden = !open;
    for (const [k, one] of this.results.querySelectorAll("button").entries()) one.classList.toggle("now", k === n);
    this.app.goTo(this.app.viewOf(item), item);
    this.app.announce(this.app.itemText(item));
  }

  key(event) {
    event.stopPropagation();
    const side = { ArrowDown: 1, ArrowUp: -1, Enter: event.shiftKey ? -1 : 1 }[event.key];
    if (side && this.found.length) {
      const many = Math.min(MOST_LISTED, this.found.length);
      this.take((this.chosen + side + many) % many, event.key !== "Enter");
      event.preventDefault();
    } else if (event.key === "Escape") this.app.letGo();
  }

  clear() {
    this.input.value = "";
    this.found = [];
    this.hide();
  }

  hide() {
    this.results.hidden = true;
  }
}
