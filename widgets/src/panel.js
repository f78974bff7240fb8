// The panel beside the views: everything about what is selected, with links to what belongs to it.

import { button, h, link, table } from "./dom.js";
import { sourceLines } from "./draw.js";
import { frameLine } from "./lists.js";
import { unknown } from "./stage.js";
import { bytes, hex, listing, median, micros, number, owner, place, plural, tenants, wordMeaning } from "./words.js";

const MOST_LINKS = 200;
const MOST_WORDS = 200;

export function details(app) {
  const { selection } = app;
  if (!selection) return overview(app);
  return MAKE[selection.is](app, selection);
}

function facts(pairs) {
  return h("dl.facts", pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", name), h("dd", value)]));
}

function head(kind, name) {
  return [h("div.kind", kind), h("h3.name", name)];
}

function overview(app) {
  const { step, store } = app;
  const { launches } = step;
  const nodes = step.captures.reduce((sum, c) => sum + c.n, 0);
  const several = store.steps.length > 1;
  return [
    ...head(several ? `step ${app.stepIndex + 1} · ${step.name}` : "trace", step.title || step.name),
    facts([
      ["source", step.source],
      ["partitions", step.partitions.length ? `${step.partitions.filter((p) => p.graphed).length} of ${step.partitions.length} graphed` : null],
      ["captures", step.captures.length ? `${step.captures.length}, ${plural(nodes, "node")}` : null],
      ["words to patch", step.captures.length ? number(step.captures.reduce((sum, c) => sum + c.pointers, 0)) : null],
      ["launches", launches.count ? launchText(launches) : null],
      ["failures", step.failures.length || null],
      ["numbers", step.proved],
      ["pool events", step.events.time.length ? number(step.events.time.length) : null],
      ["steps", several ? store.steps.length : null],
    ]),
    h("p.soft", "Keys: 1 to 5 change the view, arrows walk, Enter opens, / searches, p hides this panel, f fills the screen."),
  ];
}

function launchText(sums) {
  const parts = [`${number(sums.count)}, ${number(sums.still)} patched nothing, ${bytes(sums.bytes)} copied`];
  if (sums.times.length) parts.push(`median ${median(sums.times).toFixed(1)} µs on the CPU`);
  return parts.join(", ");
}

function nodeLink(app, c, i, extra = "") {
  const capture = app.step.captures[c];
  return button([`${capture.recorded(i)} `, capture.name(i), extra].join(""), () => app.goTo("graph", { is: "node", capture: c, at: i }), { class: "link clip", title: capture.name(i), ...app.points(() => [{ is: "node", capture: c, at: i }]) });
}

function nodeList(app, c, positions) {
  const shown = positions.slice(0, MOST_LINKS).map((i) => h("li", nodeLink(app, c, i)));
  const more = positions.length - MOST_LINKS;
  return h("ul.links", shown, more > 0 ? h("li.soft", `and ${number(more)} more`) : null);
}

function allocationLink(app, c, at) {
  return link(app.allocationName(c, at), () => app.select({ is: "allocation", capture: c, at }), app.points(() => app.ofTensor(c, at)));
}

function slotLink(app, mine, slot, here = true) {
  return mine.length === 1 && here ? allocationLink(app, mine[0].capture, mine[0].at) : tenants(mine, slot);
}

function partitionLink(app, capture) {
  const at = app.step.partitions.findIndex((p) => p.id === capture.partition);
  if (at < 0) return null;
  return link(`${app.step.partitions[at].graph} · partition ${capture.partition}`, () => app.select({ is: "partition", at }));
}

function node(app, { capture: c, at }) {
  const capture = app.step.captures[c];
  const one = capture.node(at);
  const { before, after } = capture.neighbours(at);
  const kind = one.lowered_from ? `${one.kind}, was ${one.lowered_from}` : one.kind;
  const kernel = one.kind === "kernel";
  const rows = one.words.slice(0, MOST_WORDS).map((word) => [
    String(word.offset),
    h("span", { class: `word ${word.kind}` }, word.kind),
    word.allocation !== null ? [allocationLink(app, c, word.allocation), word.delta ? ` + ${number(word.delta)}` : ""] : wordMeaning(capture, word),
    h("span.soft", word.evidence),
  ]);
  return [
    ...head(`node ${one.index} · ${one.kinds.word}`, one.name),
    facts([
      ["kind", kind],
      ["module", one.module],
      ["your line", frameLine(one.frame, (f) => app.showLine(f), app)],
      ["grid", kernel ? one.grid.join(" × ") : null],
      ["block", kernel ? one.block.join(" × ") : null],
      ["shared memory", one.shared_bytes ? bytes(one.shared_bytes) : null],
      ["lane", one.lane || null],
      ["partition", partitionLink(app, capture)],
      ["parameters", one.words.length ? `${number(one.parameter_bytes)} bytes: ${plural(one.pointers, "pointer")} of ${plural(one.words.length, "word")}` : `${number(one.parameter_bytes)} bytes`],
    ]),
    one.source ? h("details.source-text", h("summary", kernel ? "what it runs" : "source"), h("pre", one.source)) : null,
    rows.length ? h("h4", "Parameter words") : null,
    rows.length ? h("div.scroll", table(["offset", "class", "owner or value", "evidence"], rows, { class: "words" })) : null,
    one.words.length > MOST_WORDS ? h("p.soft", `and ${number(one.words.length - MOST_WORDS)} more words`) : null,
    before.length ? [h("h4", "After"), nodeList(app, c, before)] : null,
    after.length ? [h("h4", "Before"), nodeList(app, c, after)] : null,
  ];
}

function group(app, { capture: c, a, b, title }) {
  const capture = app.step.captures[c];
  const kinds = Array.from({ length: b - a }, (_, i) => app.store.families[capture.family(a + i)].word);
  return [
    ...head(`capture ${capture.id}`, title[0]),
    facts([
      ["nodes", `${number(b - a)}, from ${number(a)} to ${number(b - 1)}`],
      ["your lines", sourceLines(capture, a, b)],
      ["kinds", listing(kinds, 12)],
      ["partition", partitionLink(app, capture)],
      ["patched by", a === 0 && b === capture.n ? capture.patching : null],
    ]),
    h("h4", "Nodes"),
    nodeList(app, c, Array.from({ length: Math.min(b - a, MOST_LINKS + 1) }, (_, i) => a + i)),
  ];
}

function allocation(app, { capture: c, at }) {
  const capture = app.step.captures[c];
  const a = capture.allocations[at];
  const users = capture.usersOf(at);
  const first = users.length ? capture.frame(users[0]) : null;
  return [
    ...head(`${a.role} tensor of capture ${capture.id}`, owner(a)),
    facts([
      ["size", bytes(a.size)],
      ["allocated at", frameLine(a.frame, (f) => app.showLine(f), app)],
      ["owner at launch", a.slot === null ? "nobody: it is never addressed" : `${a.role}, slot ${a.slot}${a.offset ? ` + ${number(a.offset)}` : ""}`],
      ["lives", `from node ${a.born} ${a.died === null ? "on, still there at the end" : `to node ${a.died}`}`],
      ["first used at", frameLine(first, (f) => app.showLine(f), app)],
      ["memory", link("show in the plan", () => app.showPlan(c))],
    ]),
    h("h4", `${plural(users.length, "node")} read or write it`),
    users.length ? button("Show them in the graph", () => app.highlightIn("graph", users.map((i) => ({ is: "node", capture: c, at: i })))) : null,
    nodeList(app, c, users),
  ];
}

function partition(app, { at }) {
  const part = app.step.partitions[at];
  if (!part) return overview(app);
  const captures = app.step.capturesOf(part.id);
  return [
    ...head(part.graph, `partition ${part.id}`),
    facts([
      ["state", h("span", { class: `tag ${part.graphed ? "yes" : "no"}` }, part.graphed ? "graphed" : "not graphed")],
      ["kernels", number(part.kernels)],
      ...part.reasons.map((r) => ["because", [r.message, r.operation ? ` (${r.operation})` : "", r.frame ? [" ", frameLine(r.frame, (f) => app.showLine(f), app)] : null]]),
      ["operations", listing(part.operations, 16)],
    ]),
    captures.map((c) => {
      const capture = app.step.captures[c];
      const launches = app.step.launches.perCapture.get(capture.id);
      return [
        h("h4", `Capture ${capture.id}`),
        facts([
          ["nodes", number(capture.n)],
          ["edges", number(capture.edges.length / 2)],
          ["words to patch", number(capture.pointers)],
          ["workspace", bytes(capture.workspaceBytes)],
          ["graph itself", capture.graphBytes ? bytes(capture.graphBytes) : null],
          ["patched by", capture.patching],
          ["launches", launches ? launchText(launches) : null],
        ]),
        button("Show graph", () => app.goTo("graph", { is: "partition", at })),
        button("Show memory plan", () => app.showPlan(c)),
      ];
    }),
  ];
}

function pool(app, { step, pool: name }) {
  const found = app.poolOf(step, name);
  if (!found) return overview(app);
  // Of one size first those that a launch was given: when an address was last bound tells it of what is never freed.
  const last = new Map();
  const { addresses, event } = app.store.steps[step].launches.columns;
  addresses.forEach((list, n) => list.forEach((address) => last.set(address, event[n] ?? Infinity)));
  const alive = found.blocks.map((b, at) => ({ b, at, own: last.get(b.address) >= b.from + b.start - 1 ? 1 : 0 })).filter(({ b }) => b.alive);
  alive.sort((x, y) => y.b.size - x.b.size || y.own - x.own);
  const calls = new Map();
  for (const b of found.blocks) calls.set(b.call, (calls.get(b.call) || 0) + b.size);
  const byCall = [...calls].filter(([call]) => call !== null).slice(0, 12);
  return [
    ...head("memory pool", name),
    facts([
      ["reserved", `${bytes(found.reserved)} at rest, ${bytes(found.peakReserved)} at the peak`],
      ["live", `${bytes(found.live)} at rest, ${bytes(found.peakLive)} at the peak`],
      ["segments", number(found.segments.length)],
      ["blocks", `${number(found.blocks.length)}, of which ${number(alive.length)} are never freed`],
    ]),
    byCall.length ? [h("h4", "Allocated by"), table(["call", "bytes"], byCall.map(([call, size]) => [`call ${call}`, bytes(size)]))] : null,
    h("h4", "Largest blocks at the end"),
    alive.length
      ? h("ul.links", alive.slice(0, 40).map(({ b, at }) => h("li", link(bytes(b.size), () => app.select({ is: "block", step, pool: name, at })), h("span.soft", " ", app.tenant(step, b) || caller(b)))))
      : h("p.soft", "none"),
  ];
}

function caller({ call, frame }) {
  return call === null ? frame && place(frame) : `allocated in call ${call}`;
}

function block(app, { step, pool: name, at }) {
  const b = app.poolOf(step, name)?.blocks[at];
  if (!b) return overview(app);
  const trace = app.store.steps[step];
  const held = app.holders(trace, b).map(({ capture, slot, mine }) => h("div", slotLink(app, mine, slot, trace === app.step), h("span.soft", ` at a launch of capture ${capture.id}`)));
  return [
    ...head(`block in pool ${name}`, bytes(b.size)),
    facts([
      ["bytes", number(b.size)],
      ["address", hex(b.address)],
      ["who", b.call === null ? null : caller(b)],
      ["who holds it", held.length ? held : null],
      ["allocated at", frameLine(b.frame, (f) => app.showLine(f), app)],
      ["from", `event ${number(b.from)}`],
      ["to", b.alive ? "still live at the end" : `event ${number(b.to)}${b.freedAt === null ? "" : `, in call ${b.freedAt}`}`],
      ["pool", link(name, () => app.select({ is: "pool", step, pool: name }))],
    ]),
  ];
}

function failure(app, { at }) {
  const one = app.step.failures[at];
  if (!one) return overview(app);
  return [
    ...head("failure", one.title),
    facts([["code", one.code], ["your line", frameLine(one.frame, (f) => app.showLine(f), app)], ["cause", one.cause], ["said", one.message]]),
    button("Show the fix", () => app.goTo("failures", { is: "failure", at })),
  ];
}

/** One launch, and which words it wrote: of each slot that moved, the nodes with its address. */
function launch(app, { at }) {
  const { timeline } = app.views;
  const one = app.step.launches.one(at);
  const slots = timeline.slots(at);
  const moved = (slots ?? []).filter((row) => row.moved);
  const c = app.step.captures.findIndex((capture) => capture.id === one.capture);
  const rows = moved.slice(0, MOST_LINKS).map((row) => [
    slotLink(app, row.mine, row.slot),
    number(row.words),
    h("code", `${row.was ? hex(row.was) : "not bound"} → ${hex(row.now)}`),
  ]);
  return [
    ...head(timeline.nameOf(one.capture), `launch ${number(at)}`),
    facts([
      ["what", timeline.text(at)],
      ["launched at", one.start_us === null ? null : `${micros(one.start_us)} on the host's clock`],
      ["ran", one.gpu_us === null ? null : `${micros(one.gpu_us)} from ${micros(one.gpu_start_us)} on the GPU's`],
      ["stale if frozen", slots ? `${number(slots.filter((row) => row.first !== row.now).length)} of ${plural(slots.length, "address")}` : null],
    ]),
    rows.length ? [h("h4", "What moved"), h("div.scroll", table(["tensor", "words", "address"], rows))] : h("p.soft", slots ? "Nothing had moved." : unknown(one.words_patched)),
    button("Show memory plan", () => app.showPlan(c)),
  ];
}

const MAKE = { launch, node, group, allocation, partition, pool, block, failure };
