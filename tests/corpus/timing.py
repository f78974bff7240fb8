"""How long the corpus takes without graphs, with graph trees and with this backend, in turns.

One process for each workload holds all three, so that a round of one mode follows a round of another within
milliseconds, on the same device in the same state. Several workloads are compiled at once; then each is timed alone,
while the others wait and use neither the processor nor the GPU.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paramgraph_kit.bench.turns import Child, turns

MODES = ("no graphs", "graph trees", "paramgraph")
WARMUP = 8  # graph trees record in the second call of each size and replay from the third on
SELECTED = "paramgraph, select=measure"  # beside the three: what it finds is in the row, its time in the table
Row = dict[str, Any]


class Timed(Child):
    """One workload in all modes."""

    def __init__(self, command: Sequence[str], name: str, limit: float) -> None:
        super().__init__(command, {"workload": name}, limit, {"TORCHINDUCTOR_COMPILE_THREADS": "2"} | os.environ)


def in_batches(
    names: Sequence[str], start: Callable[[str], Timed], jobs: int, rounds: int, steps: int
) -> Iterator[list[Row]]:
    """The rows of each batch: ``jobs`` workloads compile together, then each has ``rounds`` turns of ``steps``."""
    for first in range(0, len(names), jobs):
        children = [start(name) for name in names[first : first + jobs]]
        for child in children:
            child.wait_until_ready()
        rows = []
        for child in children:
            for _ in range(rounds):
                child.take_a_turn(steps)
            rows.append(child.result())
        yield rows


def measure(case: Any, device: Any, turns: Iterator[int]) -> Row:
    """Medians of single steps in microseconds for each mode, or the mode's error."""
    import torch

    from paramgraph_kit.backend.registry import compiled_graphs
    from paramgraph_kit.bench import measure as bench
    from paramgraph_kit.driver.torch_names import torch_name
    from paramgraph_kit.launch.probation import MOST
    from tests.corpus.check import SEEDS, CaseRun

    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.backends.cudnn.deterministic = True
    torch.compiler.config.recompile_limit = 64  # three modes of one function, several sizes each
    runs: dict[str, CaseRun] = {}
    row: Row = {"workload": case.name, "family": case.family, "errors": {}, "us": {}, "turns": {}}
    selecting = bench.MODES["paramgraph"] | {"options": {"select": "measure"}}
    before: set[int] = set()
    for mode, how in ({mode: bench.MODES[mode] for mode in MODES} | {SELECTED: selecting}).items():
        before |= {graph.order for graph in compiled_graphs()}
        with _noted(row, mode):
            run = CaseRun(case, mode, device, how)
            for seed in range(2 * SEEDS * MOST if mode == SELECTED else WARMUP):  # each size, each way
                run.step(seed)
            wait()
            runs[mode] = run
    row["selection"] = [
        found for graph in compiled_graphs() if graph.order not in before for found in selection(graph.launchers)
    ]
    torch_name("shutdown_compile_workers")()
    gc.collect()
    times: dict[str, list[list[float]]] = {mode: [] for mode in runs}
    for steps in turns:
        for mode in list(runs):
            with _noted(row, mode):
                for seed in range(4):
                    runs[mode].step(seed)
                times[mode].append([_timed(runs[mode], seed, wait) for seed in range(steps)])
            if mode in row["errors"]:
                del runs[mode]
    for mode in runs:
        row["us"][mode] = bench._median([t for turn in times[mode] for t in turn])
        row["turns"][mode] = [bench._median(turn) for turn in times[mode]]
    return row


def selection(launchers: Sequence[Any]) -> list[Row]:
    """What ``select="measure"`` has found of each partition: a graph's time and that of the same code without."""
    found = []
    for launcher in launchers:
        kept = [v.probation.measured for v in launcher.variants.values() if v is not None and v.probation.measured]
        found += [
            {"partition": launcher.name, "graph_us": m.graph_us, "ungraphed_us": m.ungraphed_us, "kept": True}
            for m in kept
        ]
        slower = [reason for reason in launcher.reasons if reason.code == "slower-as-graph"]
        found += [{"partition": launcher.name, "why": reason.message, "kept": False} for reason in slower]
    return found


def _timed(run: Any, seed: int, wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    run.step(seed)
    wait()
    return (time.perf_counter() - start) * 1e6


@contextlib.contextmanager
def _noted(row: Row, mode: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # one mode's failure is a cell of the table
        text = " ".join(line.strip() for line in str(error).splitlines()[:3])
        row["errors"][mode] = f"{type(error).__name__}: {text}"[:300]


def summary(rows: Sequence[Row]) -> Row:
    """The geometric mean over graph trees, and the worst ratio to the better of the other two."""
    over_trees = {row["workload"]: ratio(row, "graph trees") for row in rows}
    over_better = {row["workload"]: ratio(row, "no graphs", "graph trees") for row in rows}
    both = [r for r in over_trees.values() if r is not None]
    worst = max(((r, name) for name, r in over_better.items() if r is not None), default=None)
    chosen = [graph for row in rows for graph in row.get("selection", ())]
    return {
        "graphs_measured": len(chosen),
        "graphs_not_kept": sum(not graph["kept"] for graph in chosen),
        "kept_and_slower": sum(graph["kept"] and graph["ungraphed_us"] < graph["graph_us"] for graph in chosen),
        "workloads": len(rows),
        "geometric_mean_over_trees": round(math.exp(math.fsum(map(math.log, both)) / len(both)), 3) if both else None,
        "compared_with_trees": len(both),
        "worst_over_better": worst and {"ratio": round(worst[0], 3), "workload": worst[1]},
    }


def ratio(row: Row, *others: str) -> float | None:
    """This backend's time over the best of ``others`` that ran.

    >>> ratio({"us": {"paramgraph": 3.0, "no graphs": 6.0, "graph trees": 4.0}}, "no graphs", "graph trees")
    0.75
    """
    times = row.get("us", {})
    known = [times[mode] for mode in others if mode in times]
    return times["paramgraph"] / min(known) if known and "paramgraph" in times else None


def started(command: Sequence[str], limit: float) -> Callable[[str], Timed]:
    """How to start the child of one workload: ``command`` and its name."""
    return lambda name: Timed([*command, name], name, limit)


def skip(name: str, reason: str) -> Row:
    """In the child: take no turns."""
    for _ in turns(set()):
        pass
    return {"workload": name, "error": reason}


def result_line(row: Row) -> None:
    """In the child: hand the row in."""
    print(json.dumps(row), flush=True)
