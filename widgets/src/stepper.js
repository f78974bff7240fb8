// The steps of a story: a walk through them, and a table of what changed between them.

import { button, h, table, tool } from "./dom.js";

const NOTHING = "not recorded"; // by the trace of a step

export class Stepper {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.element = h("div.steps");
    this.compared = innerHeight > 800; // whether the table is open: in a small window it would leave little for the views
  }

  update() {
    const { app, element } = this;
    const { steps, comparison } = app.store;
    element.hidden = steps.length < 2;
    if (steps.length < 2) return;
    const at = app.stepIndex;
    const focused = app.root.activeElement?.getAttribute("data-step");
    const walk = h("div.walk", { role: "group", label: "Steps" },
      tool("‹", "Previous step", "[", () => app.setStep(at - 1), { disabled: at === 0 }),
      steps.map((one, n) => button([h("span.n", String(n + 1)), one.name], () => app.setStep(n), { class: n === at ? "now" : "", "data-step": n, "aria-current": n === at ? "step" : null })),
      tool("›", "Next step", "]", () => app.setStep(at + 1), { disabled: at === steps.length - 1 }),
    );
    element.replaceChildren(walk, ...(comparison?.facts.length ? [this.facts(steps, comparison.facts, at)] : []));
    if (focused) /** @type {HTMLElement | null} */ (element.querySelector(`[data-step="${focused}"]`))?.focus();
  }

  facts(steps, facts, at) {
    const cell = (fact, value, n) =>
      h("span", { class: `${n === at ? "now" : ""} ${fact.changed[n] ? "changed" : ""} ${value === NOTHING ? "soft" : ""}`, title: value }, value === NOTHING ? "–" : value, fact.changed[n] ? h("span.sign", { title: "differs from the step before" }, " ●") : null);
    const rows = facts.map((fact) => [fact.name, ...fact.values.map((value, n) => cell(fact, value, n))]);
    return h("details", { open: this.compared, ontoggle: (event) => (this.compared = event.target.open) },
      h("summary", "what changed, counted in the traces (● differs from the step before)"),
      h("div.scroll", table(["", ...steps.map((one) => one.name)], rows)),
    );
  }
}
