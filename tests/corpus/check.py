"""One case of the corpus in this process: built, compiled, compared bit for bit, and what of it became graphs.

The comparison is strict without any further mode. A capture records addresses of phantom memory only, and that is
unmapped as soon as the capture ends, so a replay that used an address nobody rewrote would fault instead of reading
what happens to be right. ``strict`` in a result says that this was so at the end: nothing is mapped any more in the
ranges that captures used. On the simulator the phantom memory does not exist after a capture either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.report import make_report
from paramgraph_kit.bench.measure import Run, compare
from tests.corpus.case import Case

SEEDS = 4  # as many as a Run has samples: every size and every choice of a case comes up
Row = dict[str, Any]


class CaseRun(Run):
    """A compiled case; its optimizer is restored in place, so that compiled code of a step stays valid."""

    def __init__(self, case: Case, mode: str, device: torch.device, how: dict[str, Any]) -> None:
        how = how | ({} if case.dynamic is None else {"dynamic": case.dynamic})
        super().__init__(case, mode, device, how)
        optimizer: Any = self.optimizer
        if optimizer is not None:
            optimizer.load_state_dict = partial(_load_in_place, optimizer)
            if case.compiled_optimizer:
                plain: Callable[[], None] = optimizer.step

                def step() -> None:
                    plain()

                optimizer.step = torch.compile(step, **how)


def _load_in_place(optimizer: torch.optim.Optimizer, wanted: dict[str, Any]) -> None:
    for mine, theirs in zip(optimizer.state.values(), wanted["state"].values(), strict=True):
        for key, value in theirs.items():
            if isinstance(value, Tensor):
                mine[key].copy_(value)
            else:
                mine[key] = value


def eager(case: Case, device: torch.device) -> Row:
    """Two steps without compiling anything: whether the case itself works."""
    model = case.build(device)
    optimizer = case.optimizer(model) if case.optimizer else None
    count = 0
    for seed in range(2):
        torch.manual_seed(seed)
        found = case.step(model, [x.clone() for x in case.inputs(seed, device)], optimizer)
        count += len(found)
        assert found, f"{case.name} returned no tensors"
        assert all(isinstance(t, Tensor) for t in found), f"{case.name} returned something else than tensors"
    return {"status": "eager", "compared": count}


def without_us(case: Case, device: torch.device) -> Row:
    """Steps compiled by Inductor alone: whether this torch can compile the case at all."""
    run = CaseRun(case, "no graphs", device, {"backend": "inductor"})
    for seed in range(SEEDS):
        run.step(seed)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {"status": "compiled"}


def check(case: Case, device: torch.device) -> Row:
    """Compile, capture and compare one case; the row that the table shows."""
    started = time.perf_counter()
    torch.backends.cudnn.deterministic = True
    ranges = _phantom_ranges(device)
    run = CaseRun(case, "paramgraph", device, {"backend": paramgraph})
    for seed in range(SEEDS):
        run.step(seed)  # compiles, tunes and captures
    warm = time.perf_counter() - started
    row = compare(run, SEEDS)
    del row["reasons"]  # the report has them with their places
    report = make_report()
    inside, total = report.kernels
    row |= {
        "kernels_in_graphs": inside,
        "kernels": total,
        "partitions": len(report.rows),
        "partitions_graphed": sum(r.graphed for r in report.rows),
        "graph_bytes": report.graph_bytes,
        "reasons": sorted({f"{reason.code}: {reason.label()}" for reason in report.reasons}),
        "ungraphed_calls": sum(r.ungraphed_calls for r in report.rows),
        "warm_s": round(warm, 1),
        "total_s": round(time.perf_counter() - started, 1),
        "strict": all(r._mapped == r.base for r in ranges),
    }
    if device.type == "cuda":
        torch.cuda.synchronize()
        row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return row | _verdict(case, row)


def _verdict(case: Case, row: Row) -> Row:
    codes = {text.partition(":")[0] for text in row["reasons"]}
    absent = [code for code in case.expect if not codes & set(code.split("|"))]
    if row["different"]:
        return {"status": "wrong"}
    if absent:
        return {"status": "missed", "error": f"the report names none of: {', '.join(absent)}"}
    if case.graphed and row["kernels_in_graphs"] != row["kernels"]:
        return {"status": "missed", "error": "a kernel is in no graph"}
    if not row["strict"]:
        return {"status": "missed", "error": "memory that captures used is still mapped"}
    if case.expect:
        return {"status": "refused"}
    return {"status": "equal" if row["launches"] else "ungraphed"}


def _phantom_ranges(device: torch.device) -> list[Any]:
    if device.type != "cuda":
        return []
    from paramgraph_kit.driver.cuda.phantom import phantom_range

    return [phantom_range(device.index or 0, side) for side in (0, 1)]
