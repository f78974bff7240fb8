// The traces as the browser holds them: fed with the journal's lines, asked by every view. No DOM.

import { Capture } from "./capture.js";
import { familiesOf } from "./groups.js";

/** One trace. */
class Step {
  constructor(head, tables) {
    Object.assign(this, head);
    this.tables = tables;
    this.partitions = [];
    this.captures = [];
    this.failures = [];
    this.launches = { count: 0, moved: 0, still: 0, words: 0, bytes: 0, times: [], perCapture: new Map() };
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
  /** The view that has something to say: what failed, what is in no graph, what was captured. */
  get telling() {
    if (this.failures.length) return "failures";
    if (this.partitions.some((part) => !part.graphed)) return "partitions";
    if (this.captures.length) return "graph";
    return this.events.time.length && !this.partitions.length ? "memory" : "partitions";
  }
  capturesOf(partition) {
    return this.captures.map((_, at) => at).filter((at) => this.captures[at].partition === partition);
  }
}

export class Store {
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
    for (let i = 0; i < fresh.file.length; i++) {
      frames.push({ file: strings[fresh.file[i]], line: fresh.line[i], function: strings[fresh.function[i]], text: strings[fresh.text[i]] });
    }
    if (line.captures) this.takeCaptures(step, line.captures);
    if (line.partitions) this.takePartitions(step, line.partitions);
    if (line.failures) this.takeFailures(step, line.failures);
    step.proved = line.proved ?? step.proved;
    if (line.launches) takeLaunches(step.launches, line.launches);
    if (line.pool_events) {
      const to = step.events;
      const from = line.pool_events;
      for (let i = 0; i < from.time.length; i++) {
        to.time.push(from.time[i]);
        to.pool.push(strings[from.pool[i]]);
        to.action.push(from.action[i]);
        to.address.push(from.address[i]);
        to.size.push(from.size[i]);
        to.call.push(from.call[i]);
        to.frame.push(from.frame[i] === null ? null : frames[from.frame[i]]);
      }
    }
  }

  takeCaptures(step, columns) {
    const { strings } = step.tables;
    const families = familiesOf(this.families, strings, columns.nodes.rows);
    let node = 0;
    let word = 0;
    let allocation = 0;
    for (let row = 0; row < columns.id.length; row++) {
      const count = columns.allocations.counts[row];
      const from = columns.allocations.rows;
      const allocations = [];
      for (let i = allocation; i < allocation + count; i++) {
        allocations.push({
          index: from.index[i],
          role: from.role[i],
          size: from.size[i],
          slot: from.slot[i],
          offset: from.offset[i],
          born: from.born[i],
          died: from.died[i],
          name: strings[from.name[i]],
          shape: from.shape[i],
          dtype: strings[from.dtype[i]],
          frame: frameAt(step, from.frame[i]),
        });
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
      const count = rows.reasons.counts[i];
      const from = rows.reasons.rows;
      const reasons = [];
      for (let k = reason; k < reason + count; k++) {
        reasons.push({
          code: strings[from.code[k]],
          message: strings[from.message[k]],
          operation: strings[from.operation[k]],
          frame: frameAt(step, from.frame[k]),
        });
      }
      reason += count;
      step.partitions[place] = {
        id: rows.id[i],
        graph: strings[rows.graph[i]],
        graphed: rows.graphed[i],
        kernels: rows.kernels[i],
        position: rows.position[i],
        operations: rows.operations[i].map((s) => strings[s]),
        reasons,
      };
    });
  }

  takeFailures(step, rows) {
    const { strings } = step.tables;
    for (let i = 0; i < rows.code.length; i++) {
      step.failures.push({
        code: strings[rows.code[i]],
        title: strings[rows.title[i]],
        message: strings[rows.message[i]],
        cause: strings[rows.cause[i]],
        fix: strings[rows.fix[i]],
        frame: frameAt(step, rows.frame[i]),
      });
    }
  }
}

function frameAt(step, index) {
  return index === null ? null : step.tables.frames[index];
}

function takeLaunches(to, rows) {
  for (let i = 0; i < rows.capture.length; i++) {
    const id = rows.capture[i];
    if (!to.perCapture.has(id)) to.perCapture.set(id, { count: 0, still: 0, words: 0, bytes: 0, times: [] });
    const mine = to.perCapture.get(id);
    for (const sums of [to, mine]) {
      sums.count++;
      sums.words += rows.words_patched[i];
      sums.bytes += rows.bytes_copied[i];
      if (!rows.words_patched[i]) sums.still++;
      if (rows.cpu_us[i] !== null) sums.times.push(rows.cpu_us[i]);
    }
  }
}

function asBytes(part) {
  if (part instanceof Uint8Array) return part;
  if (part?.buffer) return new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
  return new Uint8Array(part || 0);
}
