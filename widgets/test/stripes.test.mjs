import assert from "node:assert/strict";
import { test } from "node:test";
import { Store } from "../src/store.js";
import { planStripes, poolStripes } from "../src/stripes.js";
import { bytes, listing, plural, short } from "../src/words.js";
import { fastest, join, journal } from "./helpers.mjs";

function events(rows) {
  const columns = { time: [], pool: [], action: [], address: [], size: [], call: [], frame: [] };
  rows.forEach(([pool, action, address, size], i) => {
    columns.time.push(i);
    columns.pool.push(pool);
    columns.action.push(action);
    columns.address.push(address);
    columns.size.push(size);
    columns.call.push(i);
  });
  return columns;
}

test("blocks lie inside their segments, at their own addresses, for as long as they lived", () => {
  const { pools, length } = poolStripes(events([
    ["p", "segment alloc", 1000, 100], ["p", "alloc", 1000, 40], ["p", "alloc", 1060, 40], ["p", "free", 1000, 40], ["p", "alloc", 1010, 20],
  ]));
  const [pool] = pools;
  assert.equal(length, 5);
  assert.deepEqual(pool.blocks.map((b) => [b.low, b.size, b.from, b.to, b.alive]), [[0, 40, 1, 3, false], [60, 40, 2, 5, true], [10, 20, 4, 5, true]]);
  assert.deepEqual([pool.peakReserved, pool.peakLive, pool.live, pool.height], [100, 80, 60, 100]);
});

test("a freed segment gives its place back, so the height is what was reserved", () => {
  const { pools } = poolStripes(events([
    ["p", "segment alloc", 0, 100], ["p", "segment alloc", 500, 50], ["p", "segment free", 0, 100], ["p", "segment alloc", 900, 80],
  ]));
  assert.deepEqual(pools[0].segments.map((s) => [s.low, s.from, s.to]), [[0, 0, 2], [100, 1, 4], [0, 3, 4]]);
  assert.deepEqual([pools[0].height, pools[0].reserved, pools[0].peakReserved], [150, 130, 150]);
});

test("frees of blocks that were never seen count for nothing, and blocks without a segment are still shown", () => {
  const { pools } = poolStripes(events([["default", "free", 5, 512], ["default", "alloc", 7, 256], ["default", "free", 7, 256]]));
  assert.deepEqual(pools[0].blocks.map((b) => [b.from, b.to, b.size]), [[1, 2, 256]]);
  assert.deepEqual([pools[0].live, pools[0].peakLive], [0, 256]);
});

test("events in any order are shown in the order of their times, the default pool first", () => {
  const mixed = events([["a", "alloc", 1, 10], ["default", "alloc", 2, 20]]);
  mixed.time = [1, 0];
  const { pools } = poolStripes(mixed);
  assert.deepEqual(pools.map((p) => [p.name, p.blocks[0].from]), [["default", 0], ["a", 1]]);
});

test("the plan of a capture puts the workspace at its offsets and every other tensor by itself", () => {
  const store = new Store();
  store.feed(join(journal()));
  const { pools, length } = planStripes(store.steps[0].captures[0]);
  assert.equal(length, 7);
  assert.deepEqual(pools.map((p) => [p.name, p.height]), [["workspace", 4096], ["input", 1024]]);
  assert.deepEqual(pools[0].blocks.map((b) => [b.low, b.size, b.from, b.to]), [[0, 512, 1, 4], [512, 256, 2, 5]]);
});

test("what lies in memory that a gradient lends is drawn there, and blocks of a workspace one above the other", () => {
  const row = (role, slot, offset, size, born, died) => ({ role, slot, offset, size, born, died });
  const allocations = [
    row("input", 0, 0, 100, 0, null), row("input", 1, 0, 400, 0, null), row("output", 2, 0, 8, 5, null),
    row("workspace", 1, 256, 64, 0, 2), // in the second input, which is written later
    row("workspace", 3, 0, 512, 1, 3), row("workspace", 3, 512, 64, 2, 4), row("workspace", 4, 0, 128, 3, 4),
  ];
  const { pools } = planStripes({ n: 6, allocations, workspaceBytes: 640 });
  const lows = Object.fromEntries(pools.map((pool) => [pool.name, pool.blocks.map((b) => [b.allocation, b.low])]));
  assert.deepEqual(lows, { workspace: [[4, 0], [5, 512], [6, 576]], input: [[0, 0], [1, 100], [3, 356]], output: [[2, 0]] });
  assert.deepEqual(pools.map((pool) => [pool.height, pool.peakReserved]), [[704, 640], [500, 500], [8, 8]]);
});

test("10,000 events become stripes in time", () => {
  const rows = [["p", "segment alloc", 0, 1 << 30]];
  for (let i = 0; i < 10_000; i++) rows.push(["p", i % 2 ? "free" : "alloc", ((i >> 1) % 500) * 4096, 4096]);
  const made = events(rows);
  const [spent] = fastest(() => poolStripes(made));
  assert.ok(spent < 100, `${spent} ms`);
});

test("figures and names are worded as in the text views", () => {
  assert.deepEqual([bytes(512), bytes(1536), bytes(-3 * 2 ** 30)], ["512 B", "1.5 KiB", "-3.0 GiB"]);
  assert.deepEqual([plural(1, "node"), plural(0, "copy"), plural(2, "launch"), plural(12345, "box")], ["1 node", "0 copies", "2 launches", "12,345 boxes"]);
  assert.equal(short("triton_poi_fused_add_mul_silu_17", 20), "triton_poi…l_silu_17");
  assert.equal(listing(["a", "b", "a", "c"], 2), "a ×2, b, and 1 more");
});

test("10,000 segments become stripes in time, with blocks at their own addresses", () => {
  const count = 10_000;
  const at = (i) => ((i * 7919) % count) * 8192; // in no order
  const rows = [];
  for (let i = 0; i < count; i++) rows.push(["p", "segment alloc", at(i), 8192]);
  for (let i = 0; i < count; i++) rows.push(["p", "alloc", at(i) + 512, 4096]);
  for (let i = 0; i < count; i += 2) rows.push(["p", "free", at(i) + 512, 4096], ["p", "segment free", at(i), 8192]);
  const made = poolStripes(events(rows));
  const [pool] = made.pools;
  assert.deepEqual([pool.segments.length, pool.peakReserved, pool.reserved, pool.live], [count, count * 8192, (count / 2) * 8192, (count / 2) * 4096]);
  assert.ok(pool.blocks.every((b, i) => b.low === i * 8192 + 512)); // segments stand as they came
  const all = events(rows);
  const [spent] = fastest(() => poolStripes(all));
  assert.ok(spent < 1000, `${spent} ms`);
});
