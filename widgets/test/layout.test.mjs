import assert from "node:assert/strict";
import { test } from "node:test";
import * as lay from "../src/layout.js";
import { Store } from "../src/store.js";
import { title } from "../src/draw.js";
import { fastest, join, journal } from "./helpers.mjs";

function step(options) {
  const store = new Store();
  store.feed(join(journal(options)));
  return store.steps[0];
}

function overlaps(scene) {
  const leaves = scene.boxes.filter((box) => !box.open);
  return leaves.filter((a, i) => leaves.some((b, j) => j > i && a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h));
}

test("at first partitions are open and repeated layers closed", () => {
  const trace = step();
  const scene = lay.layout(trace, lay.firstOpen(trace), "order");
  assert.deepEqual(scene.boxes.map((box) => box.is), [lay.PARTITION, lay.RUN, lay.NODE, lay.PARTITION]);
  assert.equal(scene.boxes[1].pieces.length, 2);
  assert.equal(scene.links.length, 2); // one link for the only edge that leaves the run
});

test("everything open: each node has a box of its own, none on top of another, inside what is around it", () => {
  const trace = step({ layers: 40 });
  const scene = lay.layout(trace, lay.allKeys(trace), "order");
  assert.equal(scene.boxes.filter((box) => box.is === lay.NODE).length, 121);
  assert.deepEqual(overlaps(scene), []);
  for (const box of scene.boxes.filter((one) => one.parent)) {
    const p = box.parent;
    assert.ok(box.x >= p.x && box.y >= p.y && box.x + box.w <= p.x + p.w && box.y + box.h <= p.y + p.h, box.key);
  }
  assert.equal(scene.links.length / 2, 120);
});

test("the keys around a node open it", () => {
  const trace = step();
  const keys = lay.pathTo(trace, 0, 4);
  assert.deepEqual(keys, ["p0", "r0.0", "r0.0k1"]);
  const scene = lay.layout(trace, new Set(keys));
  assert.equal(scene.boxes[scene.owner[0][4]].is, lay.NODE);
  assert.equal(scene.boxes[scene.owner[0][1]].is, lay.REPEAT);
});

test("a point finds the innermost box", () => {
  const trace = step();
  const scene = lay.layout(trace, lay.allKeys(trace));
  for (const box of scene.boxes.filter((one) => !one.open)) assert.equal(lay.hit(scene, box.x + 1, box.y + 1), box);
  assert.equal(lay.hit(scene, -1e6, 0), null);
});

test("arrow keys reach every box that is not open", () => {
  const trace = step({ layers: 5 });
  const scene = lay.layout(trace, lay.allKeys(trace), "order");
  const seen = [];
  for (let box = lay.next(scene, null, "ArrowDown"); !seen.includes(box); box = lay.next(scene, box, "ArrowDown")) seen.push(box);
  assert.equal(seen.length, scene.boxes.filter((box) => !box.open).length);
  assert.equal(lay.next(scene, seen[1], "ArrowRight"), seen[2]);
  assert.equal(lay.next(scene, seen[1], "ArrowLeft"), seen[0]);
});

test("nodes that do not repeat are cut into sections", () => {
  const trace = step({ layers: 1 });
  const [capture] = trace.captures;
  capture.n = 1000;
  capture.grouped = Array.from({ length: 1000 }, (_, i) => ({ a: i, b: i + 1 }));
  const items = lay.childrenOf(trace, { is: lay.CAPTURE, c: 0 });
  assert.equal(items.length, 10);
  assert.deepEqual([items[9].a, items[9].b], [900, 1000]);
});

test("data goes from the first node that has a tensor's address to the later ones, with the tensor", () => {
  const trace = step();
  const [capture] = trace.captures;
  const { edges, carried } = capture.data;
  // Nodes 0, 3 and 6 have x, which is an input; 1 and 4 have buf, 2 and 5 the third.
  // Those three share memory with nobody in the graph, and keep their place in the order of launching.
  assert.deepEqual([...edges], [1, 4, 2, 5, 0, 1, 2, 3, 3, 4, 5, 6]);
  assert.deepEqual([...carried], [1, 2, -1, -1, -1, -1]);
  const scene = lay.layout(trace, lay.allKeys(trace), "data");
  assert.equal(scene.links.length, 12);
  assert.deepEqual(scene.carried.get(0), [1]);
  const ordered = lay.layout(trace, lay.allKeys(trace), "order");
  assert.equal(ordered.links.length, 12);
});

test("layers of a model fold into one box by their modules, and say where they differ", () => {
  const run = (layers, modules) => {
    const trace = step({ layers, modules });
    const box = lay.layout(trace, lay.firstOpen(trace)).boxes[1];
    assert.deepEqual([box.is, box.base, box.pieces.length], [lay.RUN, "blocks", 12]);
    return title(box, trace, { families: [] });
  };
  // The last node belongs to no module, so to none of the layers.
  assert.deepEqual(run(12, (k) => `blocks.${k}.up`), ["blocks × 12", "3 nodes each · model.py:20"]);
  const twice = run(13, (k) => `blocks.${k > 5 ? k - 1 : k}.up`);
  assert.deepEqual(twice, ["blocks × 12", "3 to 6 nodes each, not all alike · model.py:20"]);
});

test("10,000 nodes are laid out in time, closed and open", () => {
  const trace = step({ layers: 3333 });
  const [closed] = fastest(() => lay.layout(trace, lay.firstOpen(trace)));
  const [open, scene] = fastest(() => lay.layout(trace, lay.allKeys(trace)));
  assert.ok(scene.boxes.length > 10_000);
  assert.ok(closed < 50, `closed: ${closed} ms`);
  assert.ok(open < 250, `open: ${open} ms`);
});

test("an optimizer's many kinds of kernels use the room that there is", () => {
  // 30 boxes, ten of them side by side: as wide as a whole step of training was, when a row took twelve.
  const trace = step({ layers: 10, modules: (k) => `layer${k}.kind${k}` });
  for (const aspect of [0.8, 1.3, 2, 3]) {
    const scene = lay.layout(trace, lay.allKeys(trace), "data", aspect);
    const filled = scene.boxes.filter((box) => !box.open).reduce((sum, box) => sum + box.w * box.h, 0);
    const shown = Math.max(scene.width, scene.height * aspect) ** 2 / aspect;
    assert.ok(filled / shown > 0.1, `${aspect}: ${(filled / shown).toFixed(3)} of the picture`);
    assert.deepEqual(overlaps(scene), []);
  }
});
