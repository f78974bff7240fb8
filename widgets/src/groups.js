// What belongs together in a captured graph: kinds of kernels, repeated runs, layers of the user's model. No DOM.

const LONGEST_LAYER = 512; // nodes of one repeated pattern
const MOST_PERIODS = 32; // that are tried at one position, shortest first

/** The position of each node's family, by the patterns that came with the families. */
export function familiesOf(families, strings, columns) {
  const at = new Map(families.map((family, n) => [family.key, n]));
  const patterns = families.filter((family) => family.names).map((family) => [at.get(family.key), new RegExp(family.names, "i")]);
  const byKind = { memcpy: at.get("copy"), memset: at.get("fill"), kernel: at.get("kernel") };
  const seen = new Map(); // few names, many nodes
  return columns.name.map((name, i) => {
    const kind = columns.lowered_from[i] || columns.kind[i];
    if (kind !== "kernel") return byKind[kind] ?? at.get("other");
    if (!seen.has(name)) seen.set(name, patterns.find(([, pattern]) => pattern.test(strings[name]))?.[0] ?? byKind.kernel);
    return seen.get(name);
  });
}

/** A sequence of numbers as runs of repeated patterns, greedily, each covering as much as it can: [start, period, repeats]. */
export function runsOf(ids) {
  const places = new Map();
  const rank = ids.map((id, i) => {
    if (!places.has(id)) places.set(id, []);
    return places.get(id).push(i) - 1;
  });
  const same = (a, b, length) => {
    for (let i = 0; i < length; i++) if (ids[a + i] !== ids[b + i]) return false;
    return true;
  };
  const runs = [];
  for (let at = 0; at < ids.length; at += runs[runs.length - 1][1] * runs[runs.length - 1][2]) {
    let best = [at, 1, 1];
    const limit = Math.min(LONGEST_LAYER, (ids.length - at) >> 1);
    const others = places.get(ids[at]);
    for (let k = rank[at] + 1; k <= rank[at] + MOST_PERIODS && k < others.length; k++) {
      const period = others[k] - at;
      if (period > limit) break;
      if (ids[others[k] - 1] !== ids[others[k] + period - 1] || !same(at, others[k], period)) continue;
      let stop = others[k] + period;
      while (stop + period <= ids.length && same(at, stop, period)) stop += period;
      if (stop - at > best[1] * best[2]) best = [at, period, (stop - at) / period];
    }
    runs.push(best);
  }
  return runs;
}

/** "blocks.3.up" as member 3 of "blocks", the outermost list of modules that it is in; or null. */
export function layerOf(path) {
  const found = /^(?:(.*?)\.)??(\d+)(?=\.|$)/.exec(path);
  return found ? { base: found[1] ?? "", k: Number(found[2]) } : null;
}

/**
 * The layers of a model in the order of recording: stretches of at least two members of one list of modules, one after
 * the other. A node without a module belongs to the member that it comes after; after the last one, where it may as well
 * be the model's own or an optimizer's, only if another member ends with such a node.
 * @param {(string | null)[]} modules of each node
 * @param {number[]} keys of each node, alike for nodes that are alike
 * @returns {{base: string, pieces: {a: number, b: number, k: number}[]}[]}
 */
export function layersOf(modules, keys) {
  /** @type {any[]} */
  const groups = [];
  /** @type {any} */
  let group = null;
  modules.forEach((path, i) => {
    const layer = path && layerOf(path);
    if (layer) {
      const { base, k } = layer;
      if (group?.base !== base) groups.push((group = { base, pieces: [], after: new Set() }));
      const last = group.pieces.at(-1);
      if (last?.k === k) [last.b, last.own] = [i + 1, last.own + 1];
      else {
        while (last?.b < i) group.after.add(keys[last.b++]);
        group.pieces.push({ a: i, b: i + 1, k, own: 1 });
      }
    } else if (path) group = null;
    if (group) group.end = i + 1;
  });
  for (const one of groups) {
    const last = one.pieces.at(-1);
    while (last.b < one.end && one.after.has(keys[last.b])) last.b++;
    one.pieces = settled(one.pieces);
  }
  return groups.filter(({ base, pieces }) => alike(modules, base, pieces));
}

/**
 * Pieces without strays: a kernel that fuses operations of several layers has the path of one, wherever it runs. What lies
 * inside another piece and is much smaller is part of it; what stands before all others and comes again is part of none.
 */
function settled(pieces) {
  const kept = [];
  for (const piece of pieces) {
    const [before, last] = kept.slice(-2);
    if (last && before.k === piece.k && 3 * last.own <= before.own + piece.own) {
      kept.pop();
      [before.b, before.own] = [piece.b, before.own + piece.own];
    } else kept.push(piece);
  }
  while (kept.slice(1).some(({ k, own }) => k === kept[0].k && 3 * kept[0].own <= own)) kept.shift();
  return kept.map(({ a, b, k }) => ({ a, b, k }));
}

/** Whether most members are made of the same parts: an nn.Sequential of many things is no layer, repeated. */
function alike(modules, base, pieces) {
  const counts = new Map();
  for (const { a, b, k } of pieces) {
    const inside = modules.slice(a, b).filter((path) => path && layerOf(path)?.k === k).map((path) => path.slice((base ? base.length + 1 : 0) + String(k).length));
    const parts = [...new Set(inside)].sort().join();
    counts.set(parts, (counts.get(parts) || 0) + 1);
  }
  const nodes = pieces.at(-1).b - pieces[0].a;
  return pieces.length > 1 && nodes >= 2 * pieces.length && Math.max(...counts.values()) * 2 >= Math.max(pieces.length, 4);
}

/** A capture as what is drawn: {a, b} of single nodes, and {a, b, pieces, base} of what repeats. */
export function itemsOf(keys, modules) {
  const items = [];
  const plain = (a, b) => {
    for (const [start, period, repeats] of runsOf(keys.slice(a, b))) {
      const from = a + start;
      if (repeats === 1) for (let i = 0; i < period; i++) items.push({ a: from + i, b: from + i + 1 });
      else items.push({ a: from, b: from + period * repeats, base: "", pieces: Array.from({ length: repeats }, (_, k) => ({ a: from + k * period, b: from + (k + 1) * period, k })) });
    }
  };
  let done = 0;
  for (const { base, pieces } of layersOf(modules, keys)) {
    plain(done, pieces[0].a);
    done = pieces[pieces.length - 1].b;
    items.push({ a: pieces[0].a, b: done, base, pieces });
  }
  plain(done, keys.length);
  return items;
}
