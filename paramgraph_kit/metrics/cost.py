"""What the metrics cost: calls of one launched function with an exporter and without, in turns, and one scrape."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.driver.select import driver
from paramgraph_kit.metrics.account import Account

TURNS = 41  # of each way; the order within a pair changes from pair to pair
CALLS = 200  # in one turn


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians in microseconds of the host's time."""

    where: str  # device, driver, versions
    without: float  # a call while nobody exports
    exported: float  # a call while an exporter is there, which has been scraped
    scrape: float  # reading all counts once

    def __str__(self) -> str:
        return (
            f"{self.where}\n"
            f"one call of a launched function  {self.without:.2f} us without metrics, {self.exported:.2f} us with "
            f"({self.exported - self.without:+.2f} us; medians of {TURNS} turns of {CALLS} calls each)\n"
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
    scrapes = []
    for turn in range(TURNS):
        for exporting in (False, True) if turn % 2 else (True, False):
            account = Account() if exporting else None
            if account is not None:
                started = time.perf_counter()
                account.read()
                scrapes.append(time.perf_counter() - started)
            device.wait()
            started = time.perf_counter()
            for _ in range(CALLS):
                double(x)
            times[exporting].append((time.perf_counter() - started) / CALLS)
            if account is not None:
                account.close()
    found = device.source()
    where = f"{found.device}, driver {found.driver}, torch {found.torch}, Python {found.python}, {found.date}"
    without, exported, scrape = (statistics.median(each) * 1e6 for each in (times[False], times[True], scrapes))
    return Cost(where, without, exported, scrape)
