// The traces as the browser holds them: fed with the journal's lines, asked by every view. No DOM.

import { Capture, rowOf } from "./capture.js";
import { familiesOf } from "./groups.js";
import { Launches } from "./launches.js";

/** One trace. */
class Step {
  constructor(head, tables) {
    Object.assign(this, head);
    this.tables = tables;
    this.partitions = [];
    this.captures = [];
    this.failures = [];
    this.launches = new Launches();
    this.events = { time: [], pool: [], action: [], address: [], size: [], call: [], frame: [] };
    this.version = 0;
  }
  /** Places of partitions, graph by graph, in the order in which a call runs them, as far as that is known. */
  get ordered() {
    const graphs = [...new Set(this.partitions.map((part) => part.graph))];
    const key = ({ graph, position }) => [graphs.indexOf(graph), position < 0 ? Infinity : position];
    const keys = this.partitions.map(key);
    return keys.map((_, at) => at).sort((a, b) => keys[a][0] - keys[b][0] || (keys[a][1] === keys[b][1] ? a - b : keys[a][1] - keys[b][1]));
  }
  /** The view that has something to say: what failed, what is in no graph, in a story what moved, what was captured. */
  telling(story) {
    if (this.failures.length) return "failures";
    if (this.partitions.some((part) => !part.graphed)) return "partitions";
    if (story && this.launches.columns.addresses.filter((list) => list.length).length > 1) return "timeline";
    if (this.captures.length) return "graph";
    return this.events.time.length && !this.partitions.length ? "memory" : "partitions";
  }
  capturesOf(partition) {
    return this.captures.map((_, at) => at).filter((at) => this.captures[at].partition === partition);
  }
}

export class Store {
  /** The step to begin with: the first one in which something failed, or else the first. */
  get first() {
    return Math.max(0, this.steps.findIndex((one) => one.failures.length));
  }

  constructor() {
    /** @type {{strings: string[], frames: any[]}} */
    this.tables = { strings: [], frames: [] }; // what lines refer to by position, unless their step has tables of its own
    this.families = [];
    this.steps = [];
    this.comparison = null;
    this.consumed = 0; // bytes of the journal that are in
    this.version = 0;
    this.decoder = new TextDecoder();
  }

  /** Take in a journal, of which any beginning may be known already; returns whether anything was new. */
  feed(...parts) {
    let skip = this.consumed;
    let fresh = "";
    for (const part of parts) {
      const bytes = asBytes(part);
      if (skip < bytes.length) {
        fresh += this.decoder.decode(bytes.subarray(skip));
        this.consumed += bytes.length - skip;
        skip = 0;
      } else skip -= bytes.length;
    }
    if (!fresh) return false;
    for (const line of fresh.split("\n")) if (line) this.take(JSON.parse(line));
    this.version++;
    return true;
  }

  take(line) {
    if (line.families) {
      this.families = line.families;
      this.steps = line.steps.map((head) => new Step(head, this.tables));
    }
    if (line.comparison) this.comparison = line.comparison;
    if (line.step === undefined) return;
    const step = this.steps[line.step];
    step.version++;
    if (line.own) step.tables = { strings: [], frames: [] };
    const { strings, frames } = step.tables;
    for (const text of line.strings) strings.push(text);
    const fresh = line.frames;
    for (let i = 0; i < fresh.file.length; i++) frames.push(rowOf(step.tables, fresh, i));
    if (line.captures) this.takeCaptures(step, line.captures);
    if (line.partitions) this.takePartitions(step, line.partitions);
    line.failures?.code.forEach((_, i) => step.failures.push(rowOf(step.tables, line.failures, i)));
    step.proved = line.proved ?? step.proved;
    if (line.launches) step.launches.take(line.launches);
    if (line.times) step.launches.time(line.times);
    line.pool_events?.time.forEach((_, i) => {
      const event = rowOf(step.tables, line.pool_events, i);
      for (const [name, to] of Object.entries(step.events)) to.push(event[name] ?? null);
    });
  }

  takeCaptures(step, columns) {
    const { strings } = step.tables;
    const families = familiesOf(this.families, strings, columns.nodes.rows);
    let node = 0;
    let word = 0;
    let allocation = 0;
    const before = step.captures.length;
    for (let row = 0; row < columns.id.length; row++) {
      const count = columns.allocations.counts[row];
      const from = columns.allocations.rows;
      const allocations = [];
      for (let i = allocation; i < allocation + count; i++) {
        allocations.push({ ...rowOf(step.tables, from, i), capture: row + before, at: allocations.length });
      }
      const capture = new Capture(step.tables, this.families, columns, families, row, node, word, allocations);
      step.captures.push(capture);
      node += capture.n;
      word = capture.wordAt[capture.n];
      allocation += count;
    }
  }

  takePartitions(step, { at, rows }) {
    const { strings } = step.tables;
    let reason = 0;
    at.forEach((place, i) => {
      const from = reason;
      reason += rows.reasons.counts[i];
      const reasons = [];
      for (let k = from; k < reason; k++) reasons.push(rowOf(step.tables, rows.reasons.rows, k));
      step.partitions[place] = { ...rowOf(step.tables, rows, i), operations: rows.operations[i].map((s) => strings[s]), reasons };
    });
  }
}

function asBytes(part) {
  if (part instanceof Uint8Array) return part;
  if (part?.buffer) return new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
  return new Uint8Array(part || 0);
}
