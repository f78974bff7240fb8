// From allocator events to rectangles: segments as envelopes, blocks as stripes at their own addresses. No DOM.

/**
 * Pools of a trace over its events. Each pool has segments (the envelope) stacked in the order of their first sight, and
 * blocks inside them; a rectangle spans [from, to) on the axis of events and [low, low + size) in bytes of its pool.
 */
export function poolStripes(events) {
  const order = events.time.map((_, i) => i);
  if (events.time.some((t, i) => i && t < events.time[i - 1])) order.sort((a, b) => events.time[a] - events.time[b]);
  const pools = new Map();
  // Events of one time are one moment: their order is not known.
  const start = events.time[order[0]];
  const total = { reserved: 0, live: 0, peakReserved: 0, peakLive: 0 };
  let x = -1;
  for (const i of order) {
    x = events.time[i] - start;
    const name = events.pool[i];
    let pool = pools.get(name);
    if (!pool) {
      pool = emptyPool(name);
      pools.set(name, pool);
    }
    const [action, address, size, call, frame] = [events.action[i], events.address[i], events.size[i], events.call[i], events.frame[i]];
    const [reserved, live] = [pool.reserved, pool.live];
    if (action === "segment alloc") openSegment(pool, x, address, size, call);
    else if (action === "segment free") closeSegment(pool, x, address);
    else if (action === "alloc") openBlock(pool, x, address, size, call, frame, start);
    else closeBlock(pool, x, address, call);
    total.reserved += pool.reserved - reserved;
    total.live += pool.live - live;
    for (const sums of [pool, total]) {
      sums.peakReserved = Math.max(sums.peakReserved, sums.reserved);
      sums.peakLive = Math.max(sums.peakLive, sums.live);
    }
  }
  const length = x + 1;
  const list = [...pools.values()];
  for (const pool of list) {
    for (const one of pool.segments) if (one.to === null) one.to = length;
    for (const one of pool.blocks) if (one.to === null) [one.to, one.alive] = [length, true];
  }
  list.sort((a, b) => Number(b.name === "default") - Number(a.name === "default") || (a.name < b.name ? -1 : 1));
  return { pools: list, length, unit: "events", total };
}

/** @returns {any} */
function emptyPool(name) {
  return { name, segments: [], blocks: [], height: 0, reach: 0, peakReserved: 0, peakLive: 0, reserved: 0, live: 0, held: new Map(), open: [], sorted: [] };
}

function openSegment(pool, x, address, size, call) {
  pool.segments.push(put(pool, { address, size, from: x, to: null, call }));
  pool.reserved += size;
}

/** What is open stands twice in its pool, by its place in the picture and by its address: there may be thousands. */
function put(pool, one) {
  // The gap that a freed segment left is taken again where it is large enough: the envelope then shows what is reserved.
  let low = 0;
  let n = 0;
  for (let next; (next = pool.open[n]) && next.low - low < one.size; n++) low = next.low + next.size;
  one.low = low;
  pool.open.splice(n, 0, one);
  pool.sorted.splice(upTo(pool, one.address), 0, one);
  pool.height = Math.max(pool.height, low + one.size);
  return one;
}

function drop(pool, one) {
  for (const list of [pool.open, pool.sorted]) list.splice(list.indexOf(one), 1);
}

/** How much of what is open is not behind an address. */
function upTo({ sorted }, address) {
  let from = 0;
  for (let to = sorted.length; from < to; ) {
    const half = (from + to) >> 1;
    if (sorted[half].address > address) to = half;
    else from = half + 1;
  }
  return from;
}

function closeSegment(pool, x, address) {
  const segment = pool.sorted[upTo(pool, address) - 1];
  if (segment?.address !== address) return;
  drop(pool, segment);
  segment.to = x;
  pool.reserved -= segment.size;
}

function openBlock(pool, x, address, size, call, frame, start) {
  closeBlock(pool, x, address, call);
  let segment = pool.sorted[upTo(pool, address) - 1];
  // Seen without its segment: the recording began later, or knows totals only. Shown on top, outside any envelope.
  const loose = !segment || address + size > segment.address + segment.size;
  if (loose) segment = put(pool, { address, size });
  const block = { address, size, low: segment.low + (address - segment.address), from: x, to: null, call, frame, start, freedAt: null, alive: false, loose: loose && segment };
  pool.blocks.push(block);
  pool.reach = Math.max(pool.reach, block.low + size);
  pool.held.set(address, block);
  pool.live += size;
}

function closeBlock(pool, x, address, call) {
  const block = pool.held.get(address);
  if (!block) return;
  pool.held.delete(address);
  block.to = x;
  block.freedAt = call;
  pool.live -= block.size;
  if (block.loose) drop(pool, block.loose);
}

/** The memory of one captured graph, planned before any launch: allocations over node positions, in one picture. */
export function planStripes(capture) {
  const pools = ["workspace", "input", "output", "static"].map(emptyPool);
  const places = new Map(); // of each slot: the pool that it is drawn in, and where it begins there
  const draw = (a, pool, low) => {
    pool.blocks.push({ size: a.size, low, from: a.born, to: a.died === null ? capture.n : a.died, allocation: a.at, alive: a.died === null });
    pool.height = Math.max(pool.height, low + a.size);
  };
  const inner = [];
  capture.allocations.forEach((one, at) => {
    const a = { ...one, at };
    if (a.role === "workspace") return void inner.push(a);
    const pool = pools.find((each) => each.name === a.role);
    if (a.slot !== null) places.set(a.slot, [pool, pool.height]);
    draw(a, pool, pool.height); // each is somebody's own tensor
  });
  // A workspace may be several blocks, one above the other; and some of it may lie in what a gradient lends until it is written.
  const [workspace] = pools;
  places.set(null, [workspace, 0]);
  const sizes = new Map();
  for (const { slot, offset, size } of inner) if (!places.has(slot)) sizes.set(slot, Math.max(sizes.get(slot) ?? 0, offset + size));
  let top = 0;
  for (const [slot, size] of sizes) {
    places.set(slot, [workspace, top]);
    top += size;
  }
  for (const a of inner) {
    const [pool, low] = places.get(a.slot);
    draw(a, pool, low + a.offset);
  }
  const shown = pools.filter((pool) => pool.blocks.length);
  for (const pool of shown) {
    pool.peakReserved = pool.height;
    if (pool === workspace) pool.height = Math.max(pool.height, (pool.peakReserved = capture.workspaceBytes || pool.height));
    pool.reach = pool.height;
    pool.segments.push({ low: 0, size: pool.height, from: 0, to: capture.n });
  }
  return { pools: shown, length: capture.n, unit: "nodes" };
}
