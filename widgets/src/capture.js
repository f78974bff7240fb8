// One captured graph as the browser holds it: columns of nodes and words, asked by position. No DOM.

/** @type {number[]} */
const EMPTY = [];

/** One captured graph. Nodes are known by position, 0 to n - 1, in the order of recording. */
export class Capture {
  constructor(store, columns, row, nodeBase, wordBase, allocations) {
    const nodes = columns.nodes.rows;
    this.store = store;
    this.id = columns.id[row];
    this.partition = columns.partition[row];
    this.workspaceBytes = columns.workspace_bytes[row];
    this.graphBytes = columns.graph_bytes[row];
    this.patching = store.strings[columns.patching[row]];
    this.n = columns.nodes.counts[row];
    this.columns = nodes;
    this.base = nodeBase;
    this.families = columns.families;
    this.runs = columns.runs[row];
    this.allocations = allocations;
    this.words = nodes.words.rows;
    this.wordAt = new Int32Array(this.n + 1);
    this.wordAt[0] = wordBase;
    for (let i = 0; i < this.n; i++) this.wordAt[i + 1] = this.wordAt[i] + nodes.words.counts[nodeBase + i];
    const position = new Map();
    for (let i = 0; i < this.n; i++) position.set(nodes.index[nodeBase + i], i);
    this.position = position;
    const edges = columns.edges[row];
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
    /** @type {number[][] | null} */
    this.users = null;
    /** @type {{before: number[][], after: number[][]} | null} */
    this.linked = null;
  }

  name(i) {
    return this.store.strings[this.columns.name[this.base + i]];
  }
  /** The index that the recording gave it. */
  recorded(i) {
    return this.columns.index[this.base + i];
  }
  lane(i) {
    return this.columns.lane[this.base + i];
  }
  family(i) {
    return this.families[this.base + i];
  }
  frame(i) {
    const at = this.columns.frame[this.base + i];
    return at === null ? null : this.store.frames[at];
  }
  /** Everything about one node, for the panel beside the graph. */
  node(i) {
    const c = this.columns;
    const at = this.base + i;
    const words = [];
    let pointers = 0;
    for (let w = this.wordAt[i]; w < this.wordAt[i + 1]; w++) {
      const kind = this.words.kind[w];
      if (kind === "pointer") pointers++;
      words.push({
        offset: this.words.offset[w],
        kind,
        allocation: this.words.allocation[w],
        delta: this.words.delta[w],
        value: this.words.value[w],
        evidence: this.store.strings[this.words.evidence[w]],
      });
    }
    return {
      index: c.index[at],
      name: this.name(i),
      kind: c.kind[at],
      lowered: c.lowered_from[at],
      family: this.store.families[this.family(i)],
      grid: c.grid[at],
      block: c.block[at],
      shared: c.shared_bytes[at],
      lane: c.lane[at],
      bytes: c.parameter_bytes[at],
      frame: this.frame(i),
      words,
      pointers,
    };
  }
  /** For each allocation the positions of the nodes with a word that points into it. */
  usersOf(allocation) {
    this.users ??= this.allUsers();
    return this.users[allocation] || EMPTY;
  }
  allUsers() {
    /** @type {number[][]} */
    const users = this.allocations.map(() => []);
    for (let i = 0; i < this.n; i++) {
      for (let w = this.wordAt[i]; w < this.wordAt[i + 1]; w++) {
        const list = users[this.words.allocation[w]];
        if (list && list[list.length - 1] !== i) list.push(i);
      }
    }
    return users;
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
      for (let w = this.wordAt[0]; w < this.wordAt[this.n]; w++) if (this.words.kind[w] === "pointer") this.pointerCount++;
    }
    return this.pointerCount;
  }
}
