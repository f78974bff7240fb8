import assert from "node:assert/strict";
import { test } from "node:test";
import { itemsOf, layerOf, layersOf, runsOf } from "../src/groups.js";
import { fastest } from "./helpers.mjs";

const letters = (text) => [...text].map((letter) => letter.charCodeAt(0));

test("a sequence is split into runs of what repeats", () => {
  assert.deepEqual(runsOf(letters("xababaaab")), [[0, 1, 1], [1, 2, 2], [5, 1, 3], [8, 1, 1]]);
  assert.deepEqual(runsOf([]), []);
  assert.deepEqual(runsOf(letters("abcabcabc")), [[0, 3, 3]]);
});

test("a path is a member of the outermost list of modules in it", () => {
  assert.deepEqual(layerOf("transformer.h.11.mlp.0"), { base: "transformer.h", k: 11 });
  assert.deepEqual(layerOf("0.1"), { base: "", k: 0 });
  assert.equal(layerOf("head"), null);
  assert.equal(layerOf("conv2d_3x3"), null);
});

test("layers fold whatever their kernels are called, in the order of a backward too", () => {
  const paths = [11, 10, 9].flatMap((k) => [`h.${k}.mlp`, `h.${k}.attn`, ""]);
  const modules = ["head", ...paths, "wte"];
  const [{ base, pieces }] = layersOf(modules, letters("-abcdecfgc-"));
  assert.equal(base, "h");
  assert.deepEqual(pieces, [{ a: 1, b: 4, k: 11 }, { a: 4, b: 7, k: 10 }, { a: 7, b: 10, k: 9 }]);
  const keys = Array.from({ length: 11 }, (_, i) => i); // no kernel twice: so the last node is nobody's
  assert.deepEqual(itemsOf(keys, modules).map(({ a, b }) => [a, b]), [[0, 1], [1, 9], [9, 10], [10, 11]]);
});

test("what the model does after its last layer is part of no layer", () => {
  // GIVEN layers with a node of no module's own in each, and after the last other ones of the model's or an optimizer's
  const paths = [0, 1, 2].flatMap((k) => [`h.${k}.mlp`, `h.${k}.attn`, ""]);
  // WHEN they are grouped, at the end of a graph and before a head
  for (const after of [[], ["head"]]) {
    const [{ pieces }] = layersOf([...paths, "", "", ...after], letters("abcabcabcxyz"));
    // THEN the last one ends as the others do
    assert.deepEqual(pieces.map(({ a, b }) => b - a), [3, 3, 3]);
  }
  assert.deepEqual(layersOf(["h.0.a", "h.0.b", "h.1.a", "h.1.b", "", ""], letters("ababxy"))[0].pieces.at(-1), { a: 2, b: 4, k: 1 });
  assert.deepEqual(layersOf([...paths.slice(0, -1), "", ""], letters("abcabcabx-"))[0].pieces.at(-1), { a: 6, b: 8, k: 2 });
});

test("members that are made of different parts are no layers", () => {
  assert.deepEqual(layersOf(["0", "1", "2", "3"], []), []); // a Sequential of linear, relu, linear, relu
  assert.deepEqual(layersOf(["0.conv", "0.norm", "1.linear", "1.act", "2.pool", "2.flat", "3.x", "3.y"], []), []);
  assert.equal(layersOf(["0.conv", "0.norm", "1.conv", "1.norm"], [])[0].pieces.length, 2);
});

test("10,000 nodes are grouped in time", () => {
  const keys = Array.from({ length: 10_000 }, (_, i) => i % 100);
  const [plain] = fastest(() => itemsOf(keys, keys.map(() => "")));
  const [named] = fastest(() => itemsOf(keys, keys.map((_, i) => `blocks.${Math.floor(i / 100)}.up`)));
  assert.ok(plain < 50, `${plain} ms`);
  assert.ok(named < 50, `${named} ms`);
});

test("a fused kernel with the path of another layer does not split the layer that it runs in", () => {
  // As Inductor numbered GPT-2 on an H100: a kernel of layer 4 runs before all, one of 8 inside 5, one of 11 inside 9.
  const layer = (k, stray = "") => [`h.${k}.ln_2`, `h.${k}.mlp`, stray, "", ...Array.from({ length: 5 }, () => `h.${k}.attn`)];
  const strays = new Map([[5, "h.8.mlp"], [9, "h.11.mlp"]]);
  const modules = ["h.0.ln_1", "h.0.attn", "transformer", "h.4.mlp", "", ...Array.from({ length: 12 }, (_, k) => layer(k, strays.get(k))).flat(), "ln_f"];
  const [{ base, pieces }] = layersOf(modules, []);
  assert.equal(base, "h");
  assert.deepEqual(pieces.map(({ k }) => k), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  assert.deepEqual(pieces.map(({ a, b }) => b - a), Array(12).fill(9));
  assert.equal(pieces[0].a, 5);
});

test("layers that are run again and again are not taken for strays", () => {
  const twice = [0, 1, 2, 0, 1, 2].flatMap((k) => [`h.${k}.a`, `h.${k}.b`, `h.${k}.c`]);
  assert.deepEqual(layersOf(twice, [])[0].pieces.map(({ k }) => k), [0, 1, 2, 0, 1, 2]);
  const inTurns = [0, 1, 0, 1].flatMap((k) => [`h.${k}.a`, `h.${k}.b`, `h.${k}.c`]);
  assert.deepEqual(layersOf(inTurns, [])[0].pieces.map(({ k }) => k), [0, 1, 0, 1]);
});
