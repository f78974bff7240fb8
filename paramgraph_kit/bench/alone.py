"""One workload in one way, in a process of its own: what a call costs, in turns with others, and what it holds.

Medians of wall times until everything is launched (CPU) and until the device is done (total), and of calls in a row,
as a loop makes them: waiting for each shows the host's time as the device's.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from paramgraph_kit.bench.measure import keep_to
from paramgraph_kit.bench.ways import Compared, Ready
from paramgraph_kit.driver.select import device, twin

MOST = 40  # calls of each kind in a turn
MIB = 1 << 20
Row = dict[str, Any]
Step = Callable[[], Any]


def measure_alone(
    workload: Compared, way: str, turns: Iterable[int], cores: Collection[int], show: Callable[[Row], None]
) -> None:
    """``show`` the row when memory is known, and again with times; ``turns`` are milliseconds that each may take."""
    row: Row = {"workload": workload.name, "way": way, "note": ""}
    ready = workload.ways[way]()
    for _ in range(workload.warm_up):
        ready.step()
    row |= _memory(ready.step)
    if ready.tokens is not None:
        row["tokens"] = ready.tokens()
    row["note"] = ready.note()
    show(row)
    times = _Times(ready)
    for milliseconds in turns:
        keep_to(cores)
        times.take_a_turn(milliseconds / 1e3)
    show(row | times.row())


def _memory(step: Step) -> Row:
    """MiB of the allocator at the peak of three steps and at rest, and of the whole process where the system tells."""
    cuda = twin()
    settle()  # compiling, tuning and capturing leave blocks that no later step needs
    cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    cuda.synchronize()
    found = {"peak_mib": cuda.max_memory_reserved(), "peak_allocated_mib": cuda.max_memory_allocated()}
    found["stepping_held_mib"] = _held()
    settle()
    found |= {"rest_mib": cuda.memory_reserved(), "rest_held_mib": _held()}
    return {name: round(value / MIB) for name, value in found.items() if value is not None}


def settle() -> None:
    """Give back what nobody uses."""
    twin().synchronize()
    gc.collect()
    twin().empty_cache()


def _held() -> int | None:
    if device().type != "cuda":
        return None
    from paramgraph_kit.driver.cuda.held import listed_bytes

    return listed_bytes(device().index or 0)


class _Times:
    """Seconds of all turns."""

    def __init__(self, ready: Ready) -> None:
        self._step, self._wait = ready.step, twin().synchronize
        self._turns: list[tuple[list[float], list[float], float]] = []

    def take_a_turn(self, seconds: float) -> None:
        """Time as many calls as fit, two at least: one by one, and in a row."""
        step, wait = self._step, self._wait
        for _ in range(2):
            step()
        once = self._timed(step)[1]
        count = max(2, min(MOST, int(seconds / 2 / once)))
        alone = [self._timed(step) for _ in range(count)]

        def many() -> None:
            for _ in range(count):
                step()

        in_a_row = self._timed(many)[1] / count
        wait()
        self._turns.append(([cpu for cpu, _ in alone], [total for _, total in alone], in_a_row))

    def row(self) -> Row:
        """Microseconds."""
        if not self._turns:
            return {}
        cpu, total, in_a_row = zip(*self._turns, strict=True)
        found: Row = {"cpu_us": [t for turn in cpu for t in turn], "total_us": [t for turn in total for t in turn]}
        found["in_a_row_us"] = in_a_row
        row: Row = {name: _us(values) for name, values in found.items()}
        return row | {
            "total_us_turns": [_us(turn) for turn in total],
            "in_a_row_us_turns": [_us([t]) for t in in_a_row],
        }

    def _timed(self, step: Step) -> tuple[float, float]:
        self._wait()
        start = time.perf_counter()
        step()
        launched = time.perf_counter()
        self._wait()
        return launched - start, time.perf_counter() - start


def _us(seconds: Iterable[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 1)


def printed(row: Row) -> None:
    """Hand a row to whoever started this process."""
    print(json.dumps(row), flush=True)
