// A journal as Python writes it, made by hand: two repeated layers of three nodes, a branch, three tensors.

const WORDS = ["", "norm_kernel", "gemm_kernel", "silu_kernel", "copy_kernel", "model.py", "forward", "h = f(h)", "same bytes", "device",
  "x", "buf", "forward 0", "aten.mm", "reads a value", "aten.item", "default", "private"];

export function journal({ layers = 2, extra = [], modules = () => "" } = {}) {
  const strings = [...WORDS, ...Array.from({ length: layers }, (_, k) => modules(k)).filter(Boolean)];
  const places = new Map(strings.map((text, i) => [text, i]));
  const at = (text) => places.get(text);
  const names = [];
  for (let k = 0; k < layers; k++) names.push(at("norm_kernel"), at("gemm_kernel"), at("silu_kernel"));
  names.push(at("copy_kernel"));
  const n = names.length;
  const fill = (value) => names.map(() => value);
  const edges = names.slice(1).map((_, i) => [i, i + 1]);
  const captures = {
    id: [7], partition: [0], workspace_bytes: [4096], graph_bytes: [0], patching: [at("device")],
    edges: [edges],
    nodes: {
      counts: [n],
      rows: {
        index: names.map((_, i) => i), kind: fill("kernel"), name: names, grid: fill([132, 1, 1]), block: fill([256, 1, 1]),
        shared_bytes: fill(0), lane: names.map((_, i) => (i === n - 1 ? 1 : 0)), parameter_bytes: fill(16), frame: fill(0), lowered_from: fill(null),
        module: names.map((_, i) => at(i < n - 1 ? modules(Math.floor(i / 3)) : "")), source: fill(at("")),
        words: {
          counts: fill(2),
          rows: {
            offset: names.flatMap(() => [0, 8]), kind: names.flatMap(() => ["pointer", "scalar"]),
            allocation: names.flatMap((_, i) => [i % 3, null]), delta: names.flatMap(() => [0, 0]),
            value: names.flatMap(() => [null, "0x8000000000000001"]), evidence: names.flatMap(() => [at("same bytes"), at("same bytes")]),
          },
        },
      },
    },
    allocations: {
      counts: [3],
      rows: { index: [0, 1, 2], role: ["input", "workspace", "workspace"], size: [1024, 512, 256], slot: [0, 1, 1], offset: [0, 0, 512],
        born: [0, 1, 2], died: [null, 4, 5], name: [at("x"), at("buf"), at("")], shape: [[16, 16], null, null], dtype: [at("f32"), at(""), at("")],
        frame: [null, 0, null] },
    },
  };
  const head = {
    families: [
      { key: "matmul", word: "matmul", fill: "#dcebff", line: "#2563b8", names: "gemm" },
      { key: "fused", word: "fused", fill: "#fde5d7", line: "#b4511a", names: "silu|norm" },
      { key: "kernel", word: "kernel", fill: "#f2f2f2", line: "#555555", names: "" },
    ],
    steps: [{ name: "one", title: "one", source: "simulated: s", origin: "simulated" }],
  };
  const body = {
    step: 0, strings, frames: { file: [at("model.py")], line: [20], function: [at("forward")], text: [at("h = f(h)")] }, captures,
    partitions: {
      at: [0, 1],
      rows: {
        id: [0, 1], graph: [at("forward 0"), at("forward 0")], graphed: [true, false], kernels: [n, 1], position: [-1, -1],
        operations: [[at("aten.mm")], [at("aten.item")]],
        reasons: { counts: [0, 1], rows: { code: [0], message: [at("reads a value")], operation: [at("aten.item")], frame: [0] } },
      },
    },
  };
  return [head, body, ...extra].map((line) => new TextEncoder().encode(`${JSON.stringify(line)}\n`));
}

export const NOTHING_NEW = { step: 0, strings: [], frames: { file: [], line: [], function: [], text: [] } };

export function launches(count, from = 0) {
  const list = Array.from({ length: count }, (_, i) => from + i);
  return { ...NOTHING_NEW, launches: { capture: list.map(() => 7), call: list, moved: list.map(() => 1), words_patched: list.map((i) => i % 2),
    bytes_copied: list.map(() => 0), cpu_us: list.map((i) => (i % 2 ? 2.5 : null)) } };
}

export function join(parts) {
  return Buffer.concat(parts);
}

/** The least milliseconds of several runs, and what the last one gave: of this process alone, as others use the machine. */
export function fastest(work, times = 7) {
  let least = Infinity;
  let result;
  for (let i = 0; i < times; i++) {
    const started = process.cpuUsage();
    result = work();
    const { user, system } = process.cpuUsage(started);
    least = Math.min(least, (user + system) / 1000);
  }
  return [least, result];
}
