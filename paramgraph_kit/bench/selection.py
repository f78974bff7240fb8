"""``bench --selection``: what ``select="measure"`` keeps and drops, beside what is true of each partition.

Every partition of some small functions is timed from its graph and ungraphed, the others as they are, in many more
turns than the launcher takes. PyGraph (arXiv:2503.19779) found 29 of its 116 graphs slower than none.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.registry import CompiledGraph, compiled_graphs
from paramgraph_kit.bench.measure import keep_to, quick_cores
from paramgraph_kit.bench.side_by_side import environment
from paramgraph_kit.bench.turns import LATE, Child, all_ready
from paramgraph_kit.bench.workloads import Block
from paramgraph_kit.driver.select import twin
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.launch.probation import EVEN, MOST

WARM_UP = 2 * MOST + 4  # calls after which each partition is kept or dropped
TURN_MS, PREPARE_S = 1500, 120.0
HEADS = (
    "workload",
    "partition",
    "select=measure",
    "it timed, graph / without",
    "true, graph / without",
    "in a row",
    "",
)
Row = dict[str, Any]
Work = Callable[[str], tuple[Any, tuple[Tensor, ...]]]  # on a device: what is compiled, and what it is called with


def small_work() -> dict[str, Work]:
    """Functions for which a graph is everything, nothing, or a loss."""
    return {
        "one kernel on 1024 numbers": partial(_applied, lambda x: x.sin() * 2 + 1, 1024),
        "one kernel on 64 Mi numbers": partial(_applied, lambda x: x.sin() * 2 + 1, 1 << 26),
        "a product of 64 x 64": partial(_applied, lambda x: x @ x, 64, 64),
        "a product of 8192 x 8192": partial(_applied, lambda x: x @ x, 8192, 8192),
        "a softmax of 8 x 256": partial(_applied, lambda x: x.softmax(-1), 8, 256),
        "ten reductions of 256 x 256": partial(_applied, _reductions, 256, 256),
        "an MLP of d=256, 8 rows": partial(_module, lambda: _mlp(256), 8, 256),
        "an MLP of d=4096, 4096 rows": partial(_module, lambda: _mlp(4096), 4096, 4096),
        "the same of d=256, training": partial(_module, lambda: _mlp(256), 8, 256, training=True),
        "a convolution of 8 x 16 x 32 x 32": partial(_module, lambda: nn.Conv2d(16, 16, 3), 8, 16, 32, 32),
        "a Llama-like block of d=256, 32 tokens": partial(_block, 256, 32),
        "the same of d=2048, 4096 tokens": partial(_block, 2048, 4096),
    }


def _applied(fn: Callable[[Tensor], Tensor], *size: int) -> Any:
    *shape, device = size
    return fn, (torch.randn(*shape, device=device),)


def _module(make: Callable[[], nn.Module], *size: Any, training: bool = False) -> Any:
    *shape, device = size
    model = make().to(device)
    return model.requires_grad_(training), (torch.randn(*shape, device=device),)


def _block(dim: int, tokens: int, device: str) -> Any:
    angle = torch.randn(tokens, dim // 8 // 2, device=device)
    block = Block(dim, 8, 3 * dim).to(device).requires_grad_(False)
    return block, (torch.randn(1, tokens, dim, device=device), angle.cos(), angle.sin())


def _mlp(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))


def _reductions(x: Tensor) -> Tensor:
    for k in range(10):
        x = F.softmax(x, dim=k % 2) * x.sum(dim=1 - k % 2, keepdim=True)
    return x


def measure_selection(
    name: str, work: Work, device: str, turns: Iterable[int], cores: Collection[int] = ()
) -> list[Row]:
    """One row for each partition; ``turns`` are milliseconds for all of them together."""
    measuring, found = _compiled(work, device, select="measure")
    always, truth = _compiled(work, device)
    for _ in range(WARM_UP):
        measuring()
        always()
    chosen = [launcher for graph in found() for launcher in graph.launchers]
    launchers = [launcher for graph in truth() for launcher in graph.launchers]
    rows: list[Row] = [
        {"workload": name, "partition": mine.name} | _decision(mine) | {"alone_us": [], "in_a_row_us": []}
        for mine, _ in zip(chosen, launchers, strict=True)
    ]
    samples: list[list[list[tuple[float, float]]]] = [[[], []] for _ in launchers]
    for milliseconds in turns:
        keep_to(cores)
        until = time.perf_counter() + milliseconds / 1e3
        while time.perf_counter() < until or any(len(way) < 3 for both in samples for way in both):
            for launcher, both in zip(launchers, samples, strict=True):
                for way, turn in zip(both, (launcher.resume, launcher.pause), strict=True):
                    turn()
                    way.append(_timed(always))
                launcher.resume()
    for row, both in zip(rows, samples, strict=True):
        for n, key in enumerate(("alone_us", "in_a_row_us")):
            row[key] = [round(statistics.median(sample[n] for sample in way) * 1e6, 1) for way in both]
        row["verdict"] = verdict(row)
    return rows


def verdict(row: Row) -> str:
    """Whether what was kept and dropped is right, by the times of whole calls that are waited for.

    >>> verdict({"kept": True, "alone_us": [10, 20]}), verdict({"kept": False, "alone_us": [10, 20]})
    ('right', 'WRONG: dropped, and it pays')
    >>> verdict({"kept": True, "alone_us": [20, 10]}), verdict({"kept": True, "alone_us": [101, 100]})
    ('WRONG: kept, and it costs', 'even')
    """
    graph, plain = row["alone_us"]
    if row["kept"] is None:
        return "no graph"
    if graph < plain * EVEN and plain < graph * EVEN:
        return "even"
    if row["kept"] is (graph < plain):
        return "right"
    return "WRONG: kept, and it costs" if row["kept"] else "WRONG: dropped, and it pays"


def _compiled(work: Work, device: str, **options: Any) -> tuple[Callable[[], Any], Callable[[], list[CompiledGraph]]]:
    """A call, and the graphs that it has compiled."""
    torch.manual_seed(0)
    fn, inputs = work(device)
    training = isinstance(fn, nn.Module) and any(p.requires_grad for p in fn.parameters())
    before = {graph.order for graph in compiled_graphs()}
    seen: list[CompiledGraph] = []
    compiled = pgk.compile(fn, **options)

    def call() -> None:
        if training:
            fn.zero_grad()
            compiled(*inputs).square().mean().backward()
        else:
            with torch.no_grad():
                compiled(*inputs)
        if not seen:
            seen.extend(graph for graph in compiled_graphs() if graph.order not in before)

    call()
    return call, lambda: seen


def _decision(launcher: Launcher) -> Row:
    """Whether it was kept (None: there was no graph to choose), and what was measured then."""
    kept = [v.probation.measured for v in launcher.variants.values() if v is not None and v.probation.measured]
    if kept:
        return {"kept": True, "measured_us": [kept[0].graph_us, kept[0].ungraphed_us]}
    slower = [reason.message for reason in launcher.reasons if reason.code == "slower-as-graph"]
    codes = "; ".join(reason.code for reason in launcher.reasons)
    return {"kept": False, "why": slower[0]} if slower else {"kept": None, "why": codes}


def _timed(call: Callable[[], Any], row: int = 8) -> tuple[float, float]:
    """Seconds of a call that is waited for, and of one of several in a row."""
    wait = twin().synchronize
    wait()
    start = time.perf_counter()
    call()
    wait()
    alone = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(row):
        call()
    wait()
    return alone, (time.perf_counter() - start) / row


def run(
    command: Sequence[str], out: Path, source: Row, *, seconds: float, jobs: int, only: Callable[[str], bool]
) -> int:
    """Measure each in a process of its own, one at a time once ``jobs`` are warm; returns the exit status."""
    deadline = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    file = out / "selection.jsonl"
    file.write_text(json.dumps({"source": source}) + "\n")
    rows: list[Row] = []
    names = [name for name in small_work() if only(name)]
    for found in _rows(names, command, deadline, jobs):
        rows += found
        with file.open("a") as journal:
            journal.writelines(json.dumps(row) + "\n" for row in found)
        for row in found:
            print(
                f"{row['workload']}, {row.get('partition', '')}: {row.get('verdict') or row['error']}", file=sys.stderr
            )
    text = markdown(rows)
    (out / "selection.md").write_text(text)
    print(text)
    return int(any("error" in row for row in rows))


def _rows(names: Sequence[str], command: Sequence[str], deadline: float, jobs: int) -> Iterator[list[Row]]:
    for first in range(0, len(names), jobs):
        left = deadline - time.monotonic()
        ready_in = max(1.0, min(PREPARE_S, 0.7 * left))
        batch, env = names[first : first + jobs], environment()
        children = [Child([*command, name], {"workload": name}, ready_in, env) for name in batch]
        all_ready(children, deadline)
        cores = ",".join(map(str, quick_cores()))
        for n, child in enumerate(children, first):
            share = (deadline - time.monotonic()) / (len(names) - n)
            child.take_a_turn(max(50, min(TURN_MS, int(share * 500))), cores)
            found = child.result()
            yield found["rows"] if "rows" in found else [child.row | {"error": found.get("error", LATE)}]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table, and what they come to."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['workload']} | | | | | | failed: {row['error'][:80]} |")
            continue
        kept = {True: "kept", False: "dropped", None: "no graph"}[row["kept"]]
        timed = [_pair(row["measured_us"]) if "measured_us" in row else row["why"]]
        timed += [_pair(row["alone_us"]), _pair(row["in_a_row_us"])]
        lines.append(f"| {row['workload']} | {row['partition']} | {kept} | {' | '.join(timed)} | {row['verdict']} |")
    count = [row.get("verdict", "") for row in rows]
    wrong = [text for text in count if text.startswith("WRONG")]
    said = f"{count.count('right')} right, {count.count('even')} even (within {EVEN - 1:.0%}), {len(wrong)} wrong"
    return "\n".join([*lines, "", f"{said}, of {len(count)}."]) + "\n"


def _pair(times: Sequence[float]) -> str:
    return " / ".join(f"{us:,.0f}" for us in times)
