// The two views that are lists: partitions with their reasons, and failures with their fixes.

import { button, h } from "./dom.js";
import { listing, number, place, plural } from "./words.js";

const MOST_ROWS = 400;

/** @param {any} app points at everything of the line, while the pointer is on it */
export function frameLine(frame, go, app = null) {
  if (!frame) return null;
  const where = go ? button(place(frame), () => go(frame), { class: "link mono", title: `${frame.file}:${frame.line}`, ...app?.points(() => app.onLine(frame)) }) : h("span.mono", place(frame));
  return h("span.frame", where, frame.text ? h("code", frame.text) : null);
}

/** Rows that are walked with the arrow keys; what one of them is called in a selection is `what`. */
class ListView {
  constructor(app, what) {
    this.app = app;
    this.what = what;
    this.stamp = "";
    this.element = h("div.list", { tabindex: 0, label: "Rows. Up and down go from row to row." });
  }

  get target() {
    return this.element;
  }

  /** What Enter does on a row; whether it does anything. */
  enter(_at) {
    return false;
  }

  rowAt(at) {
    return this.element.querySelector(`[data-at="${at}"]`);
  }

  mark() {
    const { selection } = this.app;
    for (const row of this.element.querySelectorAll("[data-at]")) {
      row.classList.toggle("selected", selection?.is === this.what && row.getAttribute("data-at") === String(selection.at));
    }
  }

  show(selection) {
    if (selection.is === this.what) this.rowAt(selection.at)?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const rows = [...this.element.querySelectorAll("[data-at]")].map((row) => Number(row.getAttribute("data-at")));
    const { selection } = this.app;
    const now = selection?.is === this.what ? rows.indexOf(selection.at) : -1;
    if (event.key === "Enter" && now >= 0) return this.enter(rows[now]);
    const last = rows.length - 1;
    const to = { ArrowDown: Math.min(last, now + 1), ArrowUp: Math.max(0, now - 1), Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return false;
    const chosen = { is: this.what, at: rows[to] };
    this.app.select(chosen);
    this.show(chosen);
    this.app.announce(this.app.itemText(chosen));
    return true;
  }
}

export class PartitionsView extends ListView {
  constructor(app) {
    super(app, "partition");
  }

  /** To the graph of a partition that has one. */
  enter(at) {
    const graphed = this.app.step.capturesOf(this.app.step.partitions[at].id).length > 0;
    if (graphed) this.app.goTo("graph", { is: "partition", at });
    return graphed;
  }

  update() {
    const { step } = this.app;
    if (!step.partitions.length) {
      const says = step.captures.length ? "This trace has captured graphs but no partitions: see Graph." : "Nothing is compiled yet in this trace.";
      this.element.replaceChildren(h("p.nothing", says));
      return;
    }
    const graphs = new Map();
    step.ordered.slice(0, MOST_ROWS).forEach((at) => {
      const part = step.partitions[at];
      if (!graphs.has(part.graph)) graphs.set(part.graph, []);
      graphs.get(part.graph).push({ part, at });
    });
    const cut = step.partitions.length - MOST_ROWS;
    this.element.replaceChildren(
      ...[...graphs].map(([graph, rows]) => this.graph(graph, rows)),
      ...(cut > 0 ? [h("p.nothing", `and ${number(cut)} more`)] : []),
    );
    this.mark();
  }

  graph(name, rows) {
    const total = rows.reduce((sum, { part }) => sum + part.kernels, 0);
    const inside = rows.reduce((sum, { part }) => sum + (part.graphed ? part.kernels : 0), 0);
    const says = total ? `${number(inside)} of ${plural(total, "kernel")} in graphs` : "kernels not counted";
    const bar = h("div.share", { role: "img", label: says });
    for (const { part } of rows) {
      const piece = h("i", { class: part.graphed ? "yes" : "no" });
      piece.style.flexGrow = String(Math.max(part.kernels, total / 200));
      bar.append(piece);
    }
    return h("section", { label: name }, h("h3", name, h("span", says)), total ? bar : null, rows.map((row) => this.row(row)));
  }

  row({ part, at }) {
    const { app } = this;
    const { step } = app;
    const captures = step.capturesOf(part.id);
    const nodes = captures.map((c) => `${number(step.captures[c].n)} nodes`).join(", ");
    // A report's trace has no launches at all, and no events.
    const idle = captures.length && step.events.time.length && !captures.some((c) => step.launches.perCapture.has(step.captures[c].id));
    return h(
      "div",
      { class: `row ${part.graphed ? "" : "refused"}`, "data-at": at },
      h("div.line",
        h("span", { class: `tag ${part.graphed ? "yes" : "no"}` }, part.graphed ? "graphed" : "not graphed"),
        button(`partition ${part.id}`, () => app.select({ is: "partition", at }), { class: "link strong" }),
        h("span.soft", part.kernels ? plural(part.kernels, "kernel") : "", nodes ? ` · ${nodes}` : ""),
        captures.length ? button("show graph", () => app.goTo("graph", { is: "partition", at }), { class: "link right" }) : null,
      ),
      h("div.ops", listing(part.operations)),
      idle ? h("div.why", "never launched while this was recorded") : null,
      part.reasons.map((reason) =>
        h("div.why", "because ", reason.message, reason.operation ? [" (", h("code", reason.operation), ")"] : null, reason.frame ? [" at ", frameLine(reason.frame, (f) => app.showLine(f), app)] : null),
      ),
    );
  }
}

export class FailuresView extends ListView {
  constructor(app) {
    super(app, "failure");
  }

  /** On to the next step, if there is one. */
  enter() {
    const { app } = this;
    if (app.stepIndex >= app.store.steps.length - 1) return false;
    app.setStep(app.stepIndex + 1);
    return true;
  }

  update() {
    const { step } = this.app;
    if (!step.failures.length) {
      this.element.replaceChildren(h("p.nothing", "No capture failed in this trace."));
      return;
    }
    this.element.replaceChildren(...step.failures.map((failure, at) => this.card(failure, at)));
    this.mark();
  }

  card(failure, at) {
    const { app } = this;
    const further = app.store.steps.length > 1 && app.stepIndex < app.store.steps.length - 1;
    return h("section.failure", { "data-at": at, label: failure.title },
      h("h3", failure.title, h("span.tag.no", failure.code)),
      h(
        "dl",
        {},
        h("dt", "line"), h("dd", failure.frame ? frameLine(failure.frame, (f) => app.showLine(f), app) : "no line of yours: it shows only when the capture ends"),
        failure.cause ? [h("dt", "cause"), h("dd", failure.cause)] : null,
        failure.fix ? [h("dt", "fix"), h("dd", fix(failure.fix))] : null,
        failure.message ? [h("dt", "said"), h("dd.soft", failure.message)] : null,
      ),
      further ? button(`Next step: ${app.store.steps[app.stepIndex + 1].name} →`, () => app.setStep(app.stepIndex + 1), { class: "primary" }) : null,
    );
  }
}

/** A fix as two marked blocks where it is written as "before ..." and "after ...", otherwise as it is. */
function fix(text) {
  const parts = /^before\s+([\s\S]*?)\nafter\s+([\s\S]*)$/.exec(text.trim());
  if (!parts) return h("pre", text);
  return h("div.fix", h("pre.before", h("b", "before "), parts[1]), h("pre.after", h("b", "after  "), parts[2]));
}
