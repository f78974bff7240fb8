// One captured graph as the browser holds it: columns of nodes and words, asked by position. No DOM.

import { itemsOf } from "./groups.js";

/** @type {number[]} */
const EMPTY = [];
const MOST_READERS = 64; // of one tensor, that edges are drawn to

const TEXTS = new Set(["name", "dtype", "file", "function", "text", "pool", "code", "message", "operation", "title", "cause", "fix", "graph", "module", "source", "evidence"]);

/**
 * One row of columns, with texts and frames in the place of where they are in the tables.
 * @returns {any}
 */
export function rowOf({ strings, frames }, columns, at) {
  const row = {};
  for (const [name, { [at]: value }] of Object.entries(columns)) row[name] = TEXTS.has(name) ? strings[value] : name === "frame" && value !== null ? frames[value] : value;
  return row;
}

/** One captured graph. Nodes are known by position, 0 to n - 1, in the order of recording. */
export class Capture {
  constructor(tables, kinds, columns, families, row, nodeBase, wordBase, allocations) {
    const nodes = columns.nodes.rows;
    this.tables = tables;
    this.kinds = kinds; // of kernels
    this.id = columns.id[row];
    this.partition = columns.partition[row];
    this.workspaceBytes = columns.workspace_bytes[row];
    this.graphBytes = columns.graph_bytes[row];
    this.patching = tables.strings[columns.patching[row]];
    this.n = columns.nodes.counts[row];
    this.columns = nodes;
    this.base = nodeBase;
    this.families = families;
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
    /** @type {{a: number, b: number, base?: string, pieces?: {a: number, b: number, k: number}[]}[] | null} */
    this.grouped = null;
    /** @type {number[][] | null} */
    this.users = null;
    /** @type {{edges: Int32Array, carried: Int32Array} | null} */
    this.flows = null;
    /** @type {Record<string, any>} */
    this.outgoing = {};
    /** @type {{before: number[][], after: number[][]} | null} */
    this.linked = null;
  }

  name(i) {
    return this.tables.strings[this.columns.name[this.base + i]];
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
  /** The path of the user's module; "" where nobody knows. */
  module(i) {
    return this.tables.strings[this.columns.module[this.base + i]];
  }
  /** What repeats, and what stands alone. */
  get items() {
    if (!this.grouped) {
      const ids = new Map();
      const keys = [];
      const modules = [];
      const { kind, name, grid, block, lane } = this.columns;
      for (let i = 0; i < this.n; i++) {
        const at = this.base + i;
        const key = `${kind[at]} ${name[at]} ${grid[at]} ${block[at]} ${lane[at]}`;
        if (!ids.has(key)) ids.set(key, ids.size);
        keys.push(ids.get(key));
        modules.push(this.module(i));
      }
      this.keys = keys;
      this.grouped = itemsOf(keys, modules);
    }
    return this.grouped;
  }
  frame(i) {
    const at = this.columns.frame[this.base + i];
    return at === null ? null : this.tables.frames[at];
  }
  /** Everything about one node, for the panel beside the graph. */
  node(i) {
    const words = [];
    for (let w = this.wordAt[i]; w < this.wordAt[i + 1]; w++) words.push(rowOf(this.tables, this.words, w));
    const pointers = words.filter(({ kind }) => kind === "pointer").length;
    return { ...rowOf(this.tables, this.columns, this.base + i), kinds: this.kinds[this.family(i)], words, pointers };
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
  /** How many words hold an address in an allocation. */
  wordsOf(allocation) {
    if (!this.wordCounts) {
      this.wordCounts = new Int32Array(this.allocations.length);
      for (let w = this.wordAt[0]; w < this.wordAt[this.n]; w++) if (this.words.allocation[w] !== null) this.wordCounts[this.words.allocation[w]]++;
    }
    return this.wordCounts[allocation];
  }
  /**
   * From the first node that has a tensor's address to those that have it later: a word says that a kernel has an address,
   * not whether it reads or writes, and memory that the graph makes is written by whoever has it first.
   */
  get data() {
    if (!this.flows) {
      const edges = [];
      const carried = []; // the tensor of each edge; -1 for none
      this.allocations.forEach(({ role }, at) => {
        if (role !== "workspace" && role !== "output") return;
        const [first, ...later] = this.usersOf(at);
        for (const i of later.slice(0, MOST_READERS)) {
          edges.push(first, i);
          carried.push(at);
        }
      });
      // What shares memory with nobody here keeps its place in the order of launching.
      const linked = new Uint8Array(this.n);
      for (const i of edges) linked[i] = 1;
      if (carried.length) {
        for (let k = 0; k < this.edges.length; k += 2) {
          if (linked[this.edges[k]] && linked[this.edges[k + 1]]) continue;
          edges.push(this.edges[k], this.edges[k + 1]);
          carried.push(-1);
        }
      }
      this.flows = { edges: Int32Array.from(edges), carried: Int32Array.from(carried) };
    }
    return this.flows;
  }
  /** Edges of a kind: "data" where addresses are known, otherwise the order of launching. */
  links(kind) {
    return kind === "data" && this.data.edges.length ? this.data.edges : this.edges;
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
