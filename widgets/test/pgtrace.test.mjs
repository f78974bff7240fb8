import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { linesOf, readable, unpack } from "../src/pgtrace.js";
import { Store } from "../src/store.js";

const folder = new URL("../../paramgraph_kit/recordings/", import.meta.url);
const families = [{ key: "matmul", word: "matmul", fill: "", line: "", names: "nvjet|gemm" }, { key: "kernel", word: "kernel", fill: "", line: "", names: "" }];

function storeOf(documents) {
  const store = new Store();
  store.feed(new TextEncoder().encode(linesOf(documents, families).map((line) => JSON.stringify(line)).join("\n")));
  return store;
}

test("every recording of the package is read, and several keep their own tables", async () => {
  const names = readdirSync(folder).filter((name) => name.endsWith(".pgtrace"));
  assert.ok(names.length >= 10);
  const documents = await Promise.all(names.map(async (name) => [name, await unpack(readFileSync(new URL(name, folder)))]));
  const together = storeOf(documents);
  documents.forEach(([name, document], n) => {
    const alone = storeOf([[name, document]]).steps[0];
    const step = together.steps[n];
    assert.equal(step.captures.length, document.captures.id.length);
    assert.equal(step.launches.count, document.launches.capture.length);
    assert.match(step.source, /^recorded: NVIDIA .*\(live when recorded\)$/);
    step.captures.forEach((capture, c) => {
      for (let i = 0; i < capture.n; i += 7) assert.deepEqual(capture.node(i), alone.captures[c].node(i));
    });
  });
});

test("what is no trace is refused with a reason", async () => {
  const packed = (content) => gzipSync(Buffer.from(content));
  for (const [bytes, says] of [
    [Buffer.from("hello"), /no trace file/], [packed("{").subarray(0, 12), /damaged or cut off/], [packed("{"), /no JSON/],
    [packed("{}"), /no trace/], [packed('{"format":"pgtrace","version":9}'), /version 9/],
  ]) await assert.rejects(unpack(new Uint8Array(bytes)), says);
});

test("kernels are called as in Python", () => {
  assert.equal(readable("_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_tn_align1EEvNT_6ParamsE"), "cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>");
  assert.equal(readable("_ZN2at6native18elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_10MulFunctorIfEEEEviT0_T1_"), "at::native::elementwise_kernel<AUnaryFunctor, MulFunctor>");
  assert.equal(readable("nvjet_tst_128x8"), "nvjet_tst_128x8");
});
