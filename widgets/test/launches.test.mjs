import assert from "node:assert/strict";
import { test } from "node:test";
import { holds, Launches } from "../src/launches.js";

/** Rows of launches: [capture, words, addresses by slot]. */
function taken(...rows) {
  const launches = new Launches();
  const calls = new Map();
  const call = (id) => calls.set(id, (calls.get(id) ?? -1) + 1).get(id);
  launches.take({
    capture: rows.map(([id]) => id), call: rows.map(([id]) => call(id)), moved: rows.map(() => 0), words_patched: rows.map(([, words]) => words),
    bytes_copied: rows.map(() => 0), cpu_us: rows.map(() => null), start_us: rows.map(() => null), addresses: rows.map(([, , list]) => list),
    event: rows.map(([, , , moment]) => moment ?? null),
  });
  return launches;
}

test("a launch knows what it wrote in the place of what, and what a frozen graph would still read", () => {
  const launches = taken([7, 3, [100, 200]], [8, 1, [5]], [7, 3, [100, 300]], [7, 0, []], [7, 3, [100, 200]]);
  assert.deepEqual(launches.slots(0), [{ slot: 0, now: 100, was: 0, first: 100, moved: true }, { slot: 1, now: 200, was: 0, first: 200, moved: true }]);
  assert.deepEqual(launches.slots(2), [{ slot: 1, now: 300, was: 200, first: 200, moved: true }, { slot: 0, now: 100, was: 100, first: 100, moved: false }]);
  assert.deepEqual(launches.slots(3).map(({ now, moved }) => [now, moved]), [[100, false], [300, false]]);
  assert.deepEqual(launches.slots(4)[0], { slot: 1, now: 200, was: 300, first: 200, moved: true });
});

test("stages write their own slots, and where addresses were not kept nothing is claimed", () => {
  const staged = taken([7, 2, [100, 0]], [7, 2, [0, 500]], [7, 2, [101, 0]], [7, 2, []], [7, 2, [102, 0]]);
  assert.deepEqual(staged.slots(1).map(({ slot, now, was, moved }) => [slot, now, was, moved]), [[1, 500, 0, true], [0, 100, 100, false]]);
  assert.deepEqual(staged.slots(2).map(({ slot, now, was }) => [slot, now, was]), [[0, 101, 100], [1, 500, 500]]);
  assert.equal(staged.slots(3), null);
  assert.equal(staged.slots(4), null);
  assert.equal(taken([7, 0, []]).slots(0), null);
});

test("memory is found by the addresses that launches were given", () => {
  const launches = taken([7, 1, [0x1000, 0x2000]], [8, 1, [0x10ff]], [7, 1, [0x1000, 0x3000]]);
  assert.deepEqual(launches.within({ address: 0x1000, size: 256 }), [[7, 0], [8, 0]]);
  assert.deepEqual(launches.bound(7).map(({ now }) => now[1]), [0x2000, 0x3000]);
  assert.deepEqual(launches.bound(9), []);
});

test("who holds a block is who lay there while it was there, and not who had the address before or after", () => {
  // Launches of 7 and 8 at one address, at moments 110 and 130 of the allocator; a third one at 150 where nothing had moved.
  const launches = taken([7, 1, [0x1000, 0x2000], 110], [8, 1, [0x1000], 130], [7, 0, [], 150]);
  const block = (from, to) => ({ address: 0x1000, size: 512, start: 100, from, to });
  assert.deepEqual(launches.within(block(0, 20)), [[7, 0]]);
  assert.deepEqual(launches.within(block(20, 40)), [[8, 0]]);
  assert.deepEqual(launches.within(block(40, 60)), [[7, 0]]);
  assert.deepEqual(launches.within(block(12, 29)), []);
  // Where the allocator was read before and after a launch, what came in between is of the later reading.
  assert.deepEqual(launches.within(block(11, 29)), [[7, 0]]);
  // Of a recording that does not say when, all that ever lay there.
  assert.deepEqual(taken([7, 1, [0x1000]]).within(block(0, 1)), [[7, 0]]);
  assert.ok(holds(block(0, 20), 0x1100, 119) && !holds(block(0, 20), 0x1100, 120) && !holds(block(0, 20), 0x1200, 110));
});

test("the axis is the device's clock, else the host's, else the order; times may come later", () => {
  const launches = taken([7, 1, [1]], [7, 1, [2]], [7, 1, [3]]);
  assert.deepEqual(launches.axis, { clock: "order", start: [0, 1, 2], end: [0.8, 1.8, 2.8], length: 2.8 });
  launches.columns.start_us = [40, 50, 90];
  assert.deepEqual(launches.axis, { clock: "host", start: [0, 10, 50], end: [0, 10, 50], length: 50 });
  launches.time({ gpu_start_us: [0, 30, null], gpu_us: [20, 5, null] });
  assert.deepEqual(launches.axis, { clock: "gpu", start: [0, 30, 30], end: [20, 35, 30], length: 35 });
});

test("100,000 launches are placed in no time", () => {
  const launches = taken(...Array.from({ length: 100_000 }, (_, n) => [n % 3, 1, []]));
  const started = process.cpuUsage();
  assert.equal(launches.axis.start.length, 100_000);
  assert.ok(process.cpuUsage(started).user < 500_000);
});
