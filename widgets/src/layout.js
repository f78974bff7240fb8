// Where every box of the graph view is: linear in nodes and edges, so it is done again whenever a box opens. No DOM.

export const PARTITION = 0;
export const CAPTURE = 1;
export const RUN = 2; // a layer, repeated: members of a list of modules, or the same nodes several times
export const REPEAT = 3; // one of them
export const NODE = 4;
export const SECTION = 5; // nodes that do not repeat, in pieces that can be looked at

const NODE_W = 196;
const NODE_H = 30;
const GROUP_W = 232;
const GROUP_H = 50;
const HEAD = 34; // of an open box
const PAD = 14;
const GAP_X = 26;
const GAP_Y = 22;
const COLUMN_GAP = 54;
const ASPECT = 1.9; // width to height that a wrapped flow aims at
const SHORT_COLUMN = 8; // rows that are wrapped only where that helps much
const ROWS = [12, 6, 4, 3]; // boxes in one
const COLUMNS = 24; // at most
const PIECE = 100;
const MOST_ITEMS = 400; // of one box, before they are cut into sections
const MOST_FIRST = 160; // boxes of the first picture

/**
 * A scene without a box; `owner` has for each capture the box that shows a node.
 * @returns {{boxes: any[], links: number[], carried: Map<number, number[]>, chain: number[], kind: string, aspect: number, width: number, height: number, byKey: Map<string, any>, owner: Int32Array[]}}
 */
export function emptyScene(owner = []) {
  return { boxes: [], links: [], carried: new Map(), chain: [], kind: "data", aspect: ASPECT, width: 1, height: 1, byKey: new Map(), owner };
}

/**
 * The boxes and links of a step's graph view, given the keys of the boxes that are open.
 * @param kind of the links: "data", or the "order" of launching
 * @param aspect width to height of the room that there is
 */
export function layout(step, open, kind = "data", aspect = ASPECT) {
  const scene = { ...emptyScene(step.captures.map((c) => new Int32Array(c.n).fill(-1))), kind, aspect };
  const tops = topItems(step);
  const built = tops.map((item) => build(step, item, open, scene));
  const size = flow(built, built.map((_, i) => i), scene.aspect);
  scene.width = size.w;
  scene.height = size.h;
  for (const box of built) settle(box, 0, 0, null, scene);
  for (let i = 1; i < built.length; i++) {
    const [a, b] = [built[i - 1], built[i]];
    if (a.graph === b.graph) scene.chain.push(a.index, b.index);
  }
  link(step, scene);
  return scene;
}

/** What is open at first: everything that keeps the picture readable; repeated layers stay closed. */
export function firstOpen(step) {
  const open = new Set();
  let count = topItems(step).length;
  for (const item of topItems(step)) {
    const inside = childrenOf(step, item).length;
    if (!inside || count + inside > MOST_FIRST) continue;
    open.add(item.key);
    count += inside;
  }
  return open;
}

/** Every key that can be opened. */
export function allKeys(step) {
  const keys = new Set();
  const walk = (item) => {
    const inside = childrenOf(step, item);
    if (inside.length) keys.add(item.key);
    for (const child of inside) if (child.is !== NODE) walk(child);
  };
  for (const item of topItems(step)) walk(item);
  return keys;
}

/** The keys of the boxes around a node, outermost first. */
export function pathTo(step, capture, position) {
  const keys = [];
  let items = topItems(step);
  for (;;) {
    const item = items.find((one) =>
      one.is === PARTITION ? one.captures.includes(capture) : one.c === capture && one.a <= position && position < one.b,
    );
    if (!item || item.is === NODE) return keys;
    keys.push(item.key);
    items = childrenOf(step, item);
  }
}

/** @returns {any[]} */
function topItems(step) {
  const items = step.ordered.map((at) => {
    const { graph, id } = step.partitions[at];
    return { is: PARTITION, key: `p${at}`, at, graph, captures: step.capturesOf(id), c: -1, a: 0, b: 0 };
  });
  const known = new Set(items.flatMap((item) => item.captures));
  step.captures.forEach((capture, c) => {
    if (!known.has(c)) items.push({ is: CAPTURE, key: `c${c}`, c, a: 0, b: capture.n, graph: null });
  });
  return items;
}

export function childrenOf(step, item) {
  if (item.is === PARTITION) {
    if (item.captures.length === 1) return captureItems(step, item.captures[0]);
    return item.captures.map((c) => ({ is: CAPTURE, key: `c${c}`, c, a: 0, b: step.captures[c].n }));
  }
  if (item.is === CAPTURE) return captureItems(step, item.c);
  if (item.is === RUN) {
    return item.pieces.map(({ a, b, k }, n) => ({ is: b - a === 1 ? NODE : REPEAT, key: `${item.key}k${n}`, c: item.c, a, b, k, base: item.base, repeats: item.pieces.length }));
  }
  if (item.is === REPEAT) return nodes(item.c, item.a, item.b);
  if (item.is === SECTION) return item.inside;
  return [];
}

function nodes(c, a, b) {
  return Array.from({ length: b - a }, (_, i) => ({ is: NODE, key: `n${c}.${a + i}`, c, a: a + i, b: a + i + 1 }));
}

function captureItems(step, c) {
  const items = step.captures[c].items.map((item) => ({ ...item, is: item.pieces ? RUN : NODE, key: `${item.pieces ? "r" : "n"}${c}.${item.a}`, c }));
  if (items.length <= MOST_ITEMS) return items;
  const pieces = [];
  for (let i = 0; i < items.length; i += PIECE) {
    const inside = items.slice(i, i + PIECE);
    const [a, b] = [inside[0].a, inside[inside.length - 1].b];
    pieces.push({ is: SECTION, key: `s${c}.${a}`, c, a, b, inside });
  }
  return pieces;
}

function build(step, item, open, scene) {
  const box = { ...item, x: 0, y: 0, w: NODE_W, h: NODE_H, open: false, inside: null, parent: null, index: -1 };
  if (item.is === NODE) return box;
  box.w = GROUP_W;
  box.h = GROUP_H;
  if (!open.has(item.key)) return box;
  const items = childrenOf(step, item);
  if (!items.length) return box;
  box.open = true;
  box.inside = items.map((child) => build(step, child, open, scene));
  const size = flow(box.inside, ranks(step, item, items, scene.kind), scene.aspect);
  box.w = Math.max(GROUP_W, size.w + 2 * PAD);
  box.h = size.h + HEAD + PAD;
  return box;
}

/** Longest path from the start, for items that are ranges of positions in recorded order. */
function ranks(step, item, items, kind) {
  const rank = new Int32Array(items.length);
  if (item.is === PARTITION && item.captures.length !== 1) return rank.map((_, i) => i);
  const capture = step.captures[items[0].c];
  const first = items[0].a;
  const owner = new Int32Array(items[items.length - 1].b - first).fill(-1);
  items.forEach((one, i) => void owner.fill(i, one.a - first, one.b - first));
  const { start, to } = outgoing(capture, kind);
  const fed = new Uint8Array(items.length);
  items.forEach((one, i) => {
    // What nothing here leads to stays beside what was recorded just before it.
    if (i && !fed[i]) rank[i] = rank[i - 1];
    for (let p = one.a; p < one.b; p++) {
      for (let k = start[p]; k < start[p + 1]; k++) {
        const j = owner[to[k] - first];
        if (j <= i) continue;
        fed[j] = 1;
        if (rank[j] <= rank[i]) rank[j] = rank[i] + 1;
      }
    }
  });
  return rank;
}

/** A capture's edges of one kind by their source. */
function outgoing(capture, kind) {
  if (capture.outgoing[kind]) return capture.outgoing[kind];
  const { n } = capture;
  const edges = capture.links(kind);
  const start = new Int32Array(n + 1);
  for (let k = 0; k < edges.length; k += 2) start[edges[k] + 1]++;
  for (let i = 0; i < n; i++) start[i + 1] += start[i];
  const at = start.slice();
  const to = new Int32Array(edges.length / 2);
  for (let k = 0; k < edges.length; k += 2) to[at[edges[k]]++] = edges[k + 1];
  capture.outgoing[kind] = { start, to };
  return capture.outgoing[kind];
}

/** The boxes of one rank in rows of so many at most. */
function wrapped(all, widest) {
  const rows = [];
  for (let i = 0; all && i < all.length; i += widest) {
    const row = all.slice(i, i + widest);
    rows.push({ row, w: row.reduce((w, box) => w + box.w + GAP_X, -GAP_X), h: Math.max(...row.map((box) => box.h)) });
  }
  return rows;
}

/** Rows by rank, wrapped into columns as text is; sets each box's x and y, returns the size of it all. */
function flow(boxes, rank, aspect) {
  const byRank = [];
  boxes.forEach((box, i) => {
    byRank[rank[i]] ||= [];
    byRank[rank[i]].push(box);
  });
  // Of a few ways to wrap rows and columns the one that can be shown largest.
  let rows = /** @type {any[]} */ ([]);
  let [limit, best] = [0, -1];
  for (const widest of ROWS) {
    const tried = byRank.flatMap((all) => wrapped(all, widest));
    const total = tried.reduce((h, r) => h + r.h + GAP_Y, 0);
    const tallest = tried.reduce((h, r) => Math.max(h, r.h), 0);
    const short = tried.length <= SHORT_COLUMN; // is rather left as it is
    for (let n = 1; n <= COLUMNS; n++) {
      const most = Math.max(tallest, total / n);
      let [w, h, wide, high] = [0, 0, 0, 0];
      for (const r of tried) {
        if (high && high + r.h > most + 1) [w, wide, high] = [w + wide + COLUMN_GAP, 0, 0];
        [wide, high] = [Math.max(wide, r.w), high + r.h + GAP_Y];
        h = Math.max(h, high);
      }
      const scale = Math.min(aspect / (w + wide), 1 / h);
      if (scale <= best * (short && n > 1 ? 1.4 : 1.02)) continue;
      rows = tried;
      [limit, best] = [most, scale];
    }
  }
  const size = { w: 0, h: 0 };
  let column = [];
  let [x, y] = [PAD, HEAD];
  const close = () => {
    const w = Math.max(0, ...column.map((r) => r.w));
    for (const r of column) {
      let at = x + (w - r.w) / 2;
      for (const box of r.row) {
        box.x = at;
        at += box.w + GAP_X;
      }
    }
    size.w = x + w - PAD;
    x += w + COLUMN_GAP;
    column = [];
    y = HEAD;
  };
  for (const r of rows) {
    if (column.length && y - HEAD + r.h > limit + 1) close();
    for (const box of r.row) box.y = y;
    column.push(r);
    y += r.h + GAP_Y;
    size.h = Math.max(size.h, y - HEAD - GAP_Y);
  }
  if (column.length) close();
  return size;
}

function settle(box, dx, dy, parent, scene) {
  box.x += dx;
  box.y += dy;
  box.parent = parent;
  box.index = scene.boxes.length;
  scene.boxes.push(box);
  scene.byKey.set(box.key, box);
  if (box.open) {
    for (const child of box.inside) settle(child, box.x, box.y, box, scene);
  } else if (box.is === PARTITION) {
    for (const c of box.captures) scene.owner[c].fill(box.index);
  } else scene.owner[box.c].fill(box.index, box.a, box.b);
}

/** One link for each pair of visible boxes that an edge joins, with the tensors that it carries. */
function link(step, scene) {
  const seen = new Map();
  step.captures.forEach((capture, c) => {
    const owner = scene.owner[c];
    const edges = capture.links(scene.kind);
    const carried = edges === capture.data.edges ? capture.data.carried : null;
    for (let k = 0; k < edges.length; k += 2) {
      const [a, b] = [owner[edges[k]], owner[edges[k + 1]]];
      if (a === b || a < 0 || b < 0) continue;
      const key = a * scene.boxes.length + b;
      if (!seen.has(key)) {
        seen.set(key, scene.links.length);
        if (carried) scene.carried.set(scene.links.length, []);
        scene.links.push(a, b);
      }
      const tensors = carried && carried[k / 2] >= 0 && scene.carried.get(seen.get(key));
      if (tensors && !tensors.includes(carried[k / 2])) tensors.push(carried[k / 2]);
    }
  });
}

/** The innermost box under a point, or null. */
export function hit(scene, x, y) {
  for (let i = scene.boxes.length - 1; i >= 0; i--) {
    const box = scene.boxes[i];
    if (x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h) return box;
  }
  return null;
}

/** The box that an arrow key leads to: up and down in the order of recording, left and right along the links. */
export function next(scene, box, key) {
  const leaves = scene.boxes.filter((one) => !one.open);
  if (!box) return leaves[0];
  if (key === "ArrowDown") return leaves.find((one) => one.index > box.index) || box;
  if (key === "ArrowUp") return leaves.findLast((one) => one.index < box.index) || box;
  const side = key === "ArrowRight" ? 0 : 1;
  const at = scene.links.findIndex((index, k) => k % 2 === side && index === box.index);
  return at < 0 ? box : scene.boxes[scene.links[at ^ 1]];
}
