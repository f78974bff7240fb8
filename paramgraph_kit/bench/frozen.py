"""One graph launched by us and the frozen graph of the same nodes, which is the floor: what patching costs.

The frozen graph is what ``torch.cuda.graph`` captures of the very code that the launcher captured. It reads the same
inputs at the same addresses in every replay; ours is launched with them where they were, and where everything moved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.bench.measure import MODES, Run
from paramgraph_kit.bench.workloads import Workload, llama
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Launcher

Row = dict[str, Any]
MODE = "frozen"  # of a child of the bench
BACK_TO_BACK = 40  # launches between two waits for the device
ALONE = 15  # launches that are each waited for


def frozen_workloads() -> list[Workload]:
    """Whole models of more than 200 nodes, one of them with kernels so small that the nodes dominate."""
    how: dict[str, Any] = {"tokens": 64, "blocks": False, "training": False}
    return [
        llama("frozen: llama 16x1024 inference", 16, 1024, **how),
        llama("frozen: llama 40x256 inference", 40, 256, heads=4, hidden=704, **how),
    ]


def measure_frozen(workload: Workload, turns: Iterable[int], device: torch.device) -> Row:
    """Microseconds of a launch, medians over the turns, back to back and singly, and ratios to the frozen graph.

    ``turns`` says how many times to launch back to back at each turn.
    """
    run = Run(workload, "paramgraph", device, MODES["paramgraph"] | {"options": {"stages": 1}})
    run.step(0)
    launcher = max((x for graph in compiled_graphs() for x in graph.launchers), key=_nodes)
    here = _inputs(run, launcher)
    there = [_copy(x) for x in here]
    ways = _ways(launcher, here, there)
    (variant,) = [v for v in launcher.variants.values() if v is not None]
    expected = ways["frozen"]()
    found_bits = [ways[way]() for way in ("still", "moved", "moved")]
    different = sum(not same_bits(a, b) for mine in found_bits for a, b in zip(mine, expected, strict=True))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    patched = dict.fromkeys(ways, 0)
    launched = dict.fromkeys(ways, 0)
    for launches in turns:
        for way, launch in ways.items():
            for _ in range(3):
                launch()
            before = variant.state.patches
            found[way].append(_timed(launch, launches))
            patched[way] += variant.state.patches - before
            launched[way] += launches + ALONE
    names = found["frozen"][0]
    return {
        "workload": workload.name,
        "mode": MODE,
        "nodes": len(variant.captured.recording.nodes),
        "words": variant.plan.words,
        "patching": variant.patching,
        "us": {way: {name: _middle(turn[name] for turn in found[way]) for name in names} for way in ways},
        "over_frozen": {way: _over(found[way], found["frozen"]) for way in ("still", "moved")},
        "share_patched": {way: round(patched[way] / launched[way], 3) for way in ("still", "moved")},
        "compared": 3 * len(expected),
        "different": different,
        "prepared_ms_per_node": round(1e3 * variant.prepared_s / len(variant.captured.recording.nodes), 4),
        "captured_ms_per_node": round(1e3 * variant.captured.capture_s / len(variant.captured.recording.nodes), 4),
    }


def markdown_frozen(rows: list[Row]) -> list[str]:
    """A table of them, or nothing."""
    if not rows:
        return []
    lines = [
        "",
        (
            f"Against the frozen graph of the same nodes, microseconds of a launch: {BACK_TO_BACK} back to back / one "
            "alone. In brackets, the median over the turns of the ratio to the frozen graph."
        ),
        "",
        "| workload | nodes, words | frozen graph | nothing moved | everything moved | to analyse, plan, instantiate |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['workload']} | failed: {row['error'][:60]} | | | | |")
            continue
        cells = [_cell(row, way) for way in ("frozen", "still", "moved")]
        lines.append(
            f"| {row['workload'].removeprefix('frozen: ')} | {row['nodes']}, {row['words']} | {' | '.join(cells)} | "
            f"{row['prepared_ms_per_node']:.3f} ms a node |"
        )
    return lines


def _cell(row: Row, way: str) -> str:
    us, ratios = row["us"][way], row["over_frozen"].get(way)
    text = " / ".join(f"{us[name]:.0f}" for name in ("back_to_back", "alone"))
    return text if ratios is None else f"{text} ({ratios['back_to_back']:.3f} / {ratios['alone']:.3f})"


def captured_by_hand(calls: Sequence[Callable[[], Any]], held: Any) -> Callable[[], None]:
    """The replay of one ``torch.cuda.graph`` for each call, all in one pool; ``held`` is what they read.

    Whoever clears cuBLAS' workspaces, as graph trees do, must not free what a graph was captured with: so they are
    allocated anew in the capture, where they belong to the pool.
    """
    cuda = twin()
    stream, pool = cuda.Stream(), cuda.graph_pool_handle()
    with cuda.stream(stream):
        for _ in range(3):
            for call in calls:
                call()
    cuda.synchronize()
    if device().type == "cuda":
        torch_name("_cuda_clearCublasWorkspaces")()
    graphs = [cuda.CUDAGraph() for _ in calls]
    results = []
    for graph, call in zip(graphs, calls, strict=True):
        with cuda.graph(graph, pool=pool, stream=stream):
            results.append(call())
    kept = graphs, calls, results, held  # a frozen graph holds nothing of what it reads

    def replay() -> None:
        for graph in kept[0]:
            graph.replay()

    return replay


def _ways(launcher: Launcher, here: list[Any], there: list[Any]) -> dict[str, Callable[[], list[Tensor]]]:
    graph = twin().CUDAGraph()
    with twin().graph(graph):
        static = launcher.code.run(list(here))
    held: list[Any] = []
    turn = [here, there]

    def frozen() -> list[Tensor]:
        graph.replay()
        return list(static)

    def still() -> list[Tensor]:
        held.clear()
        return list(launcher(list(here)))

    def moved() -> list[Tensor]:
        turn.reverse()
        held[:] = launcher(list(turn[0]))  # the last outputs live until now, so these lie elsewhere
        return list(held)

    return {"frozen": frozen, "still": still, "moved": moved}


def _timed(launch: Callable[[], Any], launches: int) -> dict[str, float]:
    wait = twin().synchronize
    wait()
    start = time.perf_counter()
    for _ in range(launches):
        launch()
    queued = time.perf_counter()
    wait()
    done = time.perf_counter()
    alone = []
    for _ in range(ALONE):
        before = time.perf_counter()
        launch()
        wait()
        alone.append(time.perf_counter() - before)
    return {
        "cpu": (queued - start) * 1e6 / launches,
        "back_to_back": (done - start) * 1e6 / launches,
        "alone": statistics.median(alone) * 1e6,
    }


def _inputs(run: Run, launcher: Launcher) -> list[Any]:
    """What the launcher is called with in a step."""
    seen: list[list[Any]] = []
    current = launcher.current

    def look(inputs: list[Any]) -> Any:
        seen.append(list(inputs))
        return current(inputs)

    launcher.current = look
    try:
        run.step(0)
    finally:
        launcher.resume()
    return seen[0]


def _copy(x: Any) -> Any:
    """The same values and strides elsewhere."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _over(ours: list[dict[str, float]], floor: list[dict[str, float]]) -> dict[str, float]:
    return {name: _middle(a[name] / b[name] for a, b in zip(ours, floor, strict=True)) for name in floor[0]}


def _nodes(launcher: Launcher) -> int:
    return max((len(v.captured.recording.nodes) for v in launcher.variants.values() if v is not None), default=0)


def _middle(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)
