"""What the caching allocator did while a ``with`` block ran, as far as the device can tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from paramgraph_kit.driver.lines import user_line
from paramgraph_kit.driver.select import driver
from paramgraph_kit.ledger.ledger import Ledger
from paramgraph_kit.trace.model import PoolAction, PoolEvent


@contextmanager
def pool_events(into: list[PoolEvent]) -> Iterator[None]:
    """Append the allocator's events: each one on the simulator, one for the whole block on a GPU.

    On a GPU the allocator is read before and after only: recording its history would slow every allocation.
    """
    target = driver()
    if target.listen is None:
        ledger = Ledger(target)
        try:
            with ledger:
                yield
        finally:
            into.extend(ledger.pool_events(start=len(into)))
        return

    first, there = len(into), True  # what is there already is one reading, of one time

    def tell(event: PoolEvent) -> None:
        asked = not there and event.action in (PoolAction.ALLOC, PoolAction.SEGMENT_ALLOC)
        line = user_line() if asked else None
        into.append(replace(event, time=first if there else len(into), frame=line))

    with target.listen(tell):
        there = False
        yield
