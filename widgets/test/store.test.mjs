import assert from "node:assert/strict";
import { test } from "node:test";
import { search } from "../src/search.js";
import { Store } from "../src/store.js";
import { join, journal, launches } from "./helpers.mjs";

function filled(options) {
  const store = new Store();
  store.feed(join(journal(options)));
  return store;
}

test("a journal becomes a trace", () => {
  const [step] = filled().steps;
  const [capture] = step.captures;
  assert.equal(capture.n, 7);
  assert.equal(capture.pointers, 7);
  const node = capture.node(1);
  assert.equal(node.name, "gemm_kernel");
  assert.deepEqual(node.grid, [132, 1, 1]);
  assert.equal(node.words[1].value, "0x8000000000000001");
  assert.equal(node.frame.file, "model.py");
  assert.deepEqual(capture.usersOf(0), [0, 3, 6]);
  assert.deepEqual(capture.neighbours(1), { before: [0], after: [2] });
  assert.equal(step.partitions[1].reasons[0].message, "reads a value");
});

test("any split of the journal into head and tail gives the same trace, and nothing counts twice", () => {
  const parts = journal({ extra: [launches(3), launches(2, 3)] });
  for (let cut = 0; cut <= parts.length; cut++) {
    const store = new Store();
    const [head, tail] = [join(parts.slice(0, cut)), join(parts.slice(cut))];
    store.feed(head, join([]));
    store.feed(head, tail);
    assert.equal(store.feed(head, tail), false);
    assert.equal(store.feed(join(parts), join([])), false); // the tail has become the head
    assert.equal(store.steps[0].launches.count, 5);
    assert.equal(store.steps[0].launches.still, 3);
    assert.deepEqual(store.steps[0].launches.times, [2.5, 2.5]);
    assert.equal(store.steps[0].captures.length, 1);
  }
});

test("a missed update is made up for by the next one", () => {
  const parts = journal({ extra: [launches(3), launches(2, 3), launches(1, 5)] });
  const store = new Store();
  store.feed(join(parts.slice(0, 2)), parts[2]);
  store.feed(join(parts.slice(0, 2)), join(parts.slice(2, 5)));
  assert.equal(store.steps[0].launches.count, 6);
});

test("a search finds nodes by name and by line, tensors, partitions, and counts what it does not list", () => {
  const store = filled();
  const find = (text, most) => search(store.steps[0], text, most);
  assert.equal(find("GEMM").total, 2);
  assert.equal(find("model.py:20").total, 7 + 1); // and the partition that is refused because of it
  assert.equal(find("aten.item").found[0].is, "partition");
  assert.equal(find("buf").found[0].is, "allocation");
  assert.deepEqual([find("kernel", 2).found.length, find("kernel", 2).total], [2, 7]);
  assert.equal(find("  ").total, 0);
});

test("partitions of a graph come in the order in which a call runs them, as far as that is known", () => {
  const [step] = filled().steps;
  step.partitions = [["a", 1], ["a", 3], ["b", -1], ["a", 2], ["b", 0], ["a", -1]].map(([graph, position]) => ({ graph, position }));
  assert.deepEqual(step.ordered, [0, 3, 1, 5, 4, 2]);
});
