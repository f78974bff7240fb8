"""Ways of running a workload side by side: processes that get ready at the same time and are then timed in turns.

Nothing runs while one of them is timed: workloads get ready in batches, as many as processor and device memory take.
Each workload's rows are kept as they come (``PART.jsonl``), and what fails or is not done in time is a row.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paramgraph_kit.bench.measure import quick_cores
from paramgraph_kit.bench.plot import calls_svg
from paramgraph_kit.bench.table import calls_markdown, worst
from paramgraph_kit.bench.turns import LATE, Child, all_ready
from paramgraph_kit.bench.ways import NO_GRAPHS, Compared

ROUNDS = 5  # turns of each way
TURN_MS = 40, 300  # a turn lasts between these, as time allows
TURN_S = 15.0  # a way whose turn lasts longer is ended
PREPARE_S = 150.0  # at most, until a way is warm
SPARE_S = 15.0  # a batch that would have less is not begun
FREE = 0.93  # of the device's memory may be planned with
Row = dict[str, Any]
Batch = list[tuple[Compared, list[str]]]  # workloads, each with some of its ways
Start = Callable[[str, str, float], Child]  # a workload, a way, and seconds to live


def run(
    workloads: Sequence[Compared],
    start: Start,
    out: Path,
    part: str,
    source: Row,
    *,
    seconds: float,
    jobs: int,
    gib: float,
    prepare: float | None = None,
) -> int:
    """Measure them in at most ``seconds``; returns the exit status: 1 where a way failed or gave other tokens."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{part}.jsonl"
    file.write_text(json.dumps({"source": source}) + "\n")
    rows: list[Row] = []
    for found in measured(workloads, start, seconds=seconds, jobs=jobs, gib=gib, prepare=prepare):
        rows += found
        with file.open("a") as journal:
            journal.writelines(json.dumps(row) + "\n" for row in found)
        for row in found:
            print(_line(row), file=sys.stderr, flush=True)
        file.with_suffix(".svg").write_text(calls_svg({"source": source, "rows": rows}))
        file.with_suffix(".md").write_text(calls_markdown(rows))
    print(calls_markdown(rows))
    print("\n".join(["Worst:", *worst(rows)]))
    return int(any(row["note"].startswith("failed") or row.get("other_tokens") for row in rows))


def measured(
    workloads: Sequence[Compared],
    start: Start,
    *,
    seconds: float,
    jobs: int,
    gib: float,
    prepare: float | None = None,
) -> Iterator[list[Row]]:
    """The rows of one workload after the other; ``prepare``: seconds until a way has to be warm, if they are said."""
    deadline = time.monotonic() + seconds
    batches = packed(workloads, jobs, gib * FREE)
    for number, batch in enumerate(batches):
        left = deadline - time.monotonic()
        if left < SPARE_S:
            yield from ([_row(w, way, {"error": LATE}) for way in ways] for w, ways in batch)
            continue
        share = 0.75 if batch is batches[-1] else 0.6  # and the rest for being timed
        ready_in = min(PREPARE_S, left * share) if prepare is None else min(prepare, left)
        children = [[(way, start(w.name, way, ready_in)) for way in ways] for w, ways in batch]
        all_ready([child for pairs in children for _, child in pairs], deadline)
        cores = ",".join(map(str, quick_cores()))
        for n, ((workload, _), pairs) in enumerate(zip(batch, children, strict=True)):
            each = (deadline - time.monotonic()) / (len(batch) - n) / (len(batches) - number)
            turn = int(each * 1e3 / (2 * ROUNDS * len(pairs)))  # calls of one turn may take longer than they should
            for _ in range(ROUNDS):
                for _, child in pairs:
                    child.live(min(TURN_S, max(1.0, deadline - time.monotonic())))
                    child.take_a_turn(min(max(turn, TURN_MS[0]), TURN_MS[1]), cores)
                    child.live(max(1.0, deadline - time.monotonic()))
            yield _compared(workload, [_row(workload, way, child.result()) for way, child in pairs])


def packed(workloads: Sequence[Compared], jobs: int, gib: float) -> list[Batch]:
    """Batches of at most ``jobs`` processes that fit into the memory; a workload is torn apart only where it must be.

    >>> small, large = Compared("small", dict.fromkeys("abc"), gib=1), Compared("large", dict.fromkeys("abc"), gib=30)
    >>> [[(w.name, "".join(ways)) for w, ways in batch] for batch in packed([small, large, small], 6, 70)]
    [[('small', 'abc'), ('large', 'ab')], [('large', 'c'), ('small', 'abc')]]
    """
    batches: list[Batch] = []
    processes, held = 0, 0.0
    for workload in workloads:
        fitting = max(1, min(jobs, int(gib / workload.gib)))
        ways = list(workload.ways)
        for some in (ways[k : k + fitting] for k in range(0, len(ways), fitting)):
            processes, held = processes + len(some), held + len(some) * workload.gib
            if not batches or processes > jobs or held > gib:
                batches.append([])
                processes, held = len(some), len(some) * workload.gib
            batches[-1].append((workload, some))
    return batches


def _row(workload: Compared, way: str, found: Row) -> Row:
    row: Row = {"workload": workload.name, "way": way, "note": ""} | found
    error = row.pop("error", None) or (None if "total_us" in row else LATE)
    return row | ({"note": f"failed: {error[:160]}"} if error else {})


def _compared(workload: Compared, rows: list[Row]) -> list[Row]:
    """With the rate and the tokens beside those of the code without graphs."""
    given = {row["way"]: row.pop("tokens", None) for row in rows}
    for row in rows:
        if workload.tokens and "total_us" in row:
            row["tokens_per_s"] = round(workload.tokens * 1e6 / row["total_us"])
            row["note"] = "; ".join(filter(None, [f"{row['tokens_per_s']:,} tokens/s", row["note"]]))
        mine, theirs = given[row["way"]], given.get(NO_GRAPHS)
        if mine is None or theirs is None or row["way"] == NO_GRAPHS:
            continue
        row["other_tokens"] = sum(a != b for a, b in zip(mine, theirs, strict=True))
        first = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
        row["note"] += ", the same tokens" if first is None else f", OTHER tokens from number {first} on"
    return rows


def _line(row: Row) -> str:
    times = " / ".join(f"{row[name]:,.0f}" for name in ("cpu_us", "total_us", "in_a_row_us") if name in row)
    memory = " / ".join(str(row.get(name, "?")) for name in ("rest_mib", "peak_mib"))
    return f"{row['workload']} | {row['way']} | {times} us | {memory} MiB | {row['note']}"


def started(command: Sequence[str]) -> Start:
    """How to start a process: ``command``, the workload and the way."""
    env = environment()

    def start(workload: str, way: str, limit: float) -> Child:
        return Child([*command, workload, way], {"workload": workload, "way": way}, limit, env)

    return start


def environment() -> dict[str, str]:
    """All are compiled at once: no process needs others to help it, which would hold device memory besides."""
    return {"TORCHINDUCTOR_COMPILE_THREADS": "1"} | os.environ
