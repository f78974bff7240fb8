"""What the metrics cost: calls of one launched function with an exporter and without, in turns, and one scrape."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.driver.select import driver
from paramgraph_kit.metrics.account import Account

TURNS = 41  # of each way; the order within a pair changes from pair to pair
CALLS = 200  # in one turn
PROMISED_US = 1.0  # a launch, at most


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians in microseconds of this thread's processor time, which nobody else's load is part of."""

    where: str  # device, driver, versions
    without: float  # a call while nobody exports
    exported: float  # a call while an exporter is there, which has been scraped
    more: tuple[float, float, float]  # in the same pair of turns: lower quartile, median, upper quartile
    functions: tuple[int, int]  # that one call calls, without and with
    scrape: float  # reading all counts once

    @property
    def kept(self) -> bool:
        """Whether a launch costs no more than was promised."""
        return self.more[1] <= PROMISED_US and self.functions[0] == self.functions[1]

    def __str__(self) -> str:
        low, middle, high = self.more
        return (
            f"{self.where}\n"
            f"one call of a launched function  {self.without:.2f} us without metrics, {self.exported:.2f} us with: "
            f"{middle:+.2f} us (half of {TURNS} pairs of {CALLS} calls between {low:+.2f} and {high:+.2f}), "
            f"{'at most' if self.kept else 'MORE than'} {PROMISED_US:g} us\n"
            f"functions that one call calls  {self.functions[0]} without metrics, {self.functions[1]} with\n"
            f"one scrape  {self.scrape:.0f} us, whoever asks for it"
        )


def cost() -> Cost:
    """Measure on this machine's device; takes a few seconds."""
    device = driver()
    double = torch.compile(lambda x: x * 2, backend=paramgraph)
    x = torch.ones(8, device=device.device)
    for _ in range(20):
        double(x)
    times: dict[bool, list[float]] = {False: [], True: []}
    called: dict[bool, int] = {}
    scrapes = []
    for turn in range(TURNS):
        for exporting in (False, True) if turn % 2 else (True, False):
            account = Account() if exporting else None
            if account is not None:
                started = time.thread_time()
                account.read()
                scrapes.append(time.thread_time() - started)
            device.wait()
            started = time.thread_time()
            for _ in range(CALLS):
                double(x)
            times[exporting].append((time.thread_time() - started) / CALLS)
            called[exporting] = _functions(lambda: double(x))
            if account is not None:
                account.close()
    found = device.source()
    where = f"{found.device}, driver {found.driver}, torch {found.torch}, Python {found.python}, {found.date}"
    without, exported, scrape = (statistics.median(each) * 1e6 for each in (times[False], times[True], scrapes))
    low, middle, high = statistics.quantiles((b - a) * 1e6 for a, b in zip(times[False], times[True], strict=True))
    return Cost(where, without, exported, (low, middle, high), (called[False], called[True]), scrape)


def _functions(call: Callable[[], object]) -> int:
    """How many functions, of Python or in C, a call calls."""
    seen = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen
