// The traces as the browser holds them: fed with the journal's lines, asked by every view. No DOM.
// What belongs to the journal is written in brackets, what is ours with a dot: the build shortens the latter.

const EMPTY = [];

/** One captured graph. Nodes are known by position, 0 to n - 1, in the order of recording. */
export class Capture {
  constructor(store, columns, row, nodeBase, wordBase, allocations) {
    const nodes = columns["nodes"]["rows"];
    this.store = store;
    this.id = columns["id"][row];
    this.partition = columns["partition"][row];
    this.workspaceBytes = columns["workspace_bytes"][row];
    this.graphBytes = columns["graph_bytes"][row];
    this.patching = store.strings[columns["patching"][row]];
    this.n = columns["nodes"]["counts"][row];
    this.columns = nodes;
    this.base = nodeBase;
    this.families = columns["families"];
    this.runs = columns["runs"][row];
    this.allocations = allocations;
    this.words = nodes["words"]["rows"];
    this.wordAt = new Int32Array(this.n + 1);
    this.wordAt[0] = wordBase;
    for (let i = 0; i < this.n; i++) this.wordAt[i + 1] = this.wordAt[i] + nodes["words"]["counts"][nodeBase + i];
    const position = new Map();
    for (let i = 0; i < this.n; i++) position.set(nodes["index"][nodeBase + i], i);
    this.position = position;
    const edges = columns["edges"][row];
    this.edges = new Int32Array(edges.length * 2);
    let k = 0;
    for (const [a, b] of edges) {
      const from = position.get(a);
      const to = position.get(b);
      if (from === undefined || to === undefined) continue;
      this.edges[k++] = from;
      this.edges[k++] = to;
    }
    this.edges = this.edges.subarray(0, k);
    this.users = null;
    this.linked = null;
  }

  name(i) {
    return this.store.strings[this.columns["name"][this.base + i]];
  }
  /** The index that the recording gave it. */
  recorded(i) {
    return this.columns["index"][this.base + i];
  }
  lane(i) {
    return this.columns["lane"][this.base + i];
  }
  family(i) {
    return this.families[this.base + i];
  }
  frame(i) {
    const at = this.columns["frame"][this.base + i];
    return at === null ? null : this.store.frames[at];
  }
  /** Everything about one node, for the panel beside the graph. */
  node(i) {
    const c = this.columns;
    const at = this.base + i;
    const words = [];
    let pointers = 0;
    for (let w = this.wordAt[i]; w < this.wordAt[i + 1]; w++) {
      const kind = this.words["kind"][w];
      if (kind === "pointer") pointers++;
      words.push({
        offset: this.words["offset"][w],
        kind,
        allocation: this.words["allocation"][w],
        delta: this.words["delta"][w],
        value: this.words["value"][w],
        evidence: this.store.strings[this.words["evidence"][w]],
      });
    }
    return {
      index: c["index"][at],
      name: this.name(i),
      kind: c["kind"][at],
      lowered: c["lowered_from"][at],
      family: this.store.families[this.family(i)],
      grid: c["grid"][at],
      block: c["block"][at],
      shared: c["shared_bytes"][at],
      lane: c["lane"][at],
      bytes: c["parameter_bytes"][at],
      frame: this.frame(i),
      words,
      pointers,
    };
  }
  /** For each allocation the positions of the nodes with a word that points into it. */
  usersOf(allocation) {
    if (!this.users) {
      this.users = this.allocations.map(() => []);
      for (let i = 0; i < this.n; i++) {
        for (let w = this.wordAt[i]; w < this.wordAt[i + 1]; w++) {
          const list = this.users[this.words["allocation"][w]];
          if (list && list[list.length - 1] !== i) list.push(i);
        }
      }
    }
    return this.users[allocation] || EMPTY;
  }
  /** Positions before and after a node along the edges. */
  neighbours(i) {
    if (!this.linked) {
      this.linked = { before: Array.from({ length: this.n }, () => []), after: Array.from({ length: this.n }, () => []) };
      for (let k = 0; k < this.edges.length; k += 2) {
        this.linked.after[this.edges[k]].push(this.edges[k + 1]);
        this.linked.before[this.edges[k + 1]].push(this.edges[k]);
      }
    }
    return { before: this.linked.before[i], after: this.linked.after[i] };
  }
  get pointers() {
    if (this.pointerCount === undefined) {
      this.pointerCount = 0;
      for (let w = this.wordAt[0]; w < this.wordAt[this.n]; w++) if (this.words["kind"][w] === "pointer") this.pointerCount++;
    }
    return this.pointerCount;
  }
}

/** One trace. */
class Step {
  constructor(head) {
    Object.assign(this, head);
    this.partitions = [];
    this.captures = [];
    this.failures = [];
    this.launches = { count: 0, moved: 0, still: 0, words: 0, bytes: 0, times: [], perCapture: new Map() };
    this.events = { time: [], pool: [], action: [], address: [], size: [], call: [] };
    this.version = 0;
  }
  capturesOf(partition) {
    return this.captures.map((_, at) => at).filter((at) => this.captures[at].partition === partition);
  }
}

export class Store {
  constructor() {
    this.strings = [];
    this.frames = [];
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
    if (line["families"]) {
      this.families = line["families"];
      this.steps = line["steps"].map((head) => new Step(head));
    }
    if (line["comparison"]) this.comparison = line["comparison"];
    if (line["step"] === undefined) return;
    const step = this.steps[line["step"]];
    step.version++;
    for (const text of line["strings"]) this.strings.push(text);
    const frames = line["frames"];
    for (let i = 0; i < frames["file"].length; i++) {
      this.frames.push({
        file: this.strings[frames["file"][i]],
        line: frames["line"][i],
        function: this.strings[frames["function"][i]],
        text: this.strings[frames["text"][i]],
      });
    }
    if (line["captures"]) this.takeCaptures(step, line["captures"]);
    if (line["partitions"]) this.takePartitions(step, line["partitions"]);
    if (line["failures"]) this.takeFailures(step, line["failures"]);
    step.proved = line["proved"] ?? step.proved;
    if (line["launches"]) takeLaunches(step.launches, line["launches"]);
    if (line["pool_events"]) {
      const to = step.events;
      const from = line["pool_events"];
      for (let i = 0; i < from["time"].length; i++) {
        to.time.push(from["time"][i]);
        to.pool.push(this.strings[from["pool"][i]]);
        to.action.push(from["action"][i]);
        to.address.push(from["address"][i]);
        to.size.push(from["size"][i]);
        to.call.push(from["call"][i]);
      }
    }
  }

  takeCaptures(step, columns) {
    let node = 0;
    let word = 0;
    let allocation = 0;
    for (let row = 0; row < columns["id"].length; row++) {
      const count = columns["allocations"]["counts"][row];
      const from = columns["allocations"]["rows"];
      const allocations = [];
      for (let i = allocation; i < allocation + count; i++) {
        allocations.push({
          index: from["index"][i],
          role: from["role"][i],
          size: from["size"][i],
          slot: from["slot"][i],
          offset: from["offset"][i],
          born: from["born"][i],
          died: from["died"][i],
          name: this.strings[from["name"][i]],
        });
      }
      const capture = new Capture(this, columns, row, node, word, allocations);
      step.captures.push(capture);
      node += capture.n;
      word = capture.wordAt[capture.n];
      allocation += count;
    }
  }

  takePartitions(step, { at, rows }) {
    let reason = 0;
    at.forEach((place, i) => {
      const count = rows["reasons"]["counts"][i];
      const from = rows["reasons"]["rows"];
      const reasons = [];
      for (let k = reason; k < reason + count; k++) {
        reasons.push({
          code: this.strings[from["code"][k]],
          message: this.strings[from["message"][k]],
          operation: this.strings[from["operation"][k]],
          frame: from["frame"][k] === null ? null : this.frames[from["frame"][k]],
        });
      }
      reason += count;
      step.partitions[place] = {
        id: rows["id"][i],
        graph: this.strings[rows["graph"][i]],
        graphed: rows["graphed"][i],
        kernels: rows["kernels"][i],
        operations: rows["operations"][i].map((s) => this.strings[s]),
        reasons,
      };
    });
  }

  takeFailures(step, rows) {
    for (let i = 0; i < rows["code"].length; i++) {
      step.failures.push({
        code: this.strings[rows["code"][i]],
        title: this.strings[rows["title"][i]],
        message: this.strings[rows["message"][i]],
        cause: this.strings[rows["cause"][i]],
        fix: this.strings[rows["fix"][i]],
        frame: rows["frame"][i] === null ? null : this.frames[rows["frame"][i]],
      });
    }
  }
}

function takeLaunches(to, rows) {
  for (let i = 0; i < rows["capture"].length; i++) {
    const id = rows["capture"][i];
    let mine = to.perCapture.get(id);
    if (!mine) to.perCapture.set(id, (mine = { count: 0, still: 0, words: 0, bytes: 0, times: [] }));
    for (const sums of [to, mine]) {
      sums.count++;
      sums.words += rows["words_patched"][i];
      sums.bytes += rows["bytes_copied"][i];
      if (!rows["words_patched"][i]) sums.still++;
      if (rows["cpu_us"][i] !== null) sums.times.push(rows["cpu_us"][i]);
    }
  }
}

function asBytes(part) {
  if (part instanceof Uint8Array) return part;
  if (part && part.buffer) return new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
  return new Uint8Array(part || 0);
}

/** Where `text` occurs in a step: nodes, tensors, partitions and failures; at most `most` of them, and how many in all. */
export function search(store, step, text, most = 200) {
  const wanted = text.trim().toLowerCase();
  const found = [];
  let total = 0;
  if (!wanted) return { found, total };
  const has = (s) => s.toLowerCase().includes(wanted);
  const add = (item) => {
    total++;
    if (found.length < most) found.push(item);
  };
  const strings = store.strings.map(has); // few strings, many nodes
  const on = (f) => f && has(`${f.file}:${f.line} ${f.function} ${f.text}`);
  const frames = store.frames.map(on);
  step.partitions.forEach((part, at) => {
    const reasons = part.reasons.some((r) => has(r.message) || has(r.operation) || on(r.frame));
    if (part.operations.some(has) || reasons || has(`partition ${part.id}`)) add({ is: "partition", at });
  });
  step.failures.forEach((f, at) => {
    if (has(f.title) || has(f.code) || has(f.message) || on(f.frame)) add({ is: "failure", at });
  });
  step.captures.forEach((capture, c) => {
    capture.allocations.forEach((a, at) => {
      if (a.name && has(a.name)) add({ is: "allocation", capture: c, at });
    });
    for (let i = 0; i < capture.n; i++) {
      const frame = capture.columns["frame"][capture.base + i];
      const index = capture.columns["index"][capture.base + i];
      if (strings[capture.columns["name"][capture.base + i]] || (frame !== null && frames[frame]) || `node ${index}` === wanted)
        add({ is: "node", capture: c, at: i });
    }
  });
  return { found, total };
}
