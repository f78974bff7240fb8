"""From allocator events to one series per pool: what it reserved and what was live, over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paramgraph_kit.trace.model import PoolAction, PoolEvent

MOST_MOMENTS = 100_000
BARS = "▁▂▃▄▅▆▇█"


class ReadingLike(Protocol):
    """One reading of a device's memory, in bytes, as ``ledger.Reading`` has it."""

    @property
    def label(self) -> str:
        """When it was read: "call 3"."""

    @property
    def allocated(self) -> int:
        """Bytes in live blocks."""

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds."""

    @property
    def device(self) -> int:
        """Bytes in use on the device, by anyone."""


@dataclass(slots=True)
class PoolSeries:
    """One pool over time; the lists run in step, one entry for each time at which any pool has an event."""

    name: str
    times: list[int] = field(default_factory=list)
    calls: list[int | None] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)  # the envelope
    live: list[int] = field(default_factory=list)  # blocks in use, inside it

    @property
    def peak_reserved(self) -> int:
        """The largest envelope, in bytes."""
        return max(self.reserved, default=0)

    @property
    def peak_live(self) -> int:
        """The most bytes in use at one time."""
        return max(self.live, default=0)

    def held(self, values: Sequence[int]) -> list[int]:
        """``values`` with the last one repeated at times without an event; as they are where such times abound.

        >>> PoolSeries("default", times=[0, 3]).held([5, 7])
        [5, 5, 5, 7]
        """
        if not self.times or self.times[-1] - self.times[0] > MOST_MOMENTS:
            return list(values)
        until = [*self.times[1:], self.times[-1] + 1]
        return [v for v, start, end in zip(values, self.times, until, strict=True) for _ in range(end - start)]

    def __repr__(self) -> str:
        return f"PoolSeries({self.name!r}, {len(self.times)} events, peak {self.peak_reserved} bytes reserved)"


def pool_series(events: Iterable[PoolEvent]) -> list[PoolSeries]:
    """One series per pool, "default" first, then by name.

    A recording that starts late sees blocks freed that it never saw allocated; those count for nothing,
    so that no series goes below zero.

    Events of one time are one state of the allocator, as a snapshot gives it: what lies between is not shown.

    >>> segment = PoolEvent(0, "default", PoolAction.SEGMENT_ALLOC, 0, 2048)
    >>> block = PoolEvent(1, "default", PoolAction.ALLOC, 0, 512)
    >>> pool_series([segment, block])[0].live
    [0, 512]
    """
    ordered = sorted(events, key=lambda event: event.time)
    pools = {event.pool: PoolSeries(event.pool) for event in ordered}
    held: dict[tuple[str, bool], dict[int, int]] = {}
    reserved, live = dict.fromkeys(pools, 0), dict.fromkeys(pools, 0)
    for event in ordered:
        segment = event.action in (PoolAction.SEGMENT_ALLOC, PoolAction.SEGMENT_FREE)
        blocks = held.setdefault((event.pool, segment), {})
        before = blocks.pop(event.address, 0)
        if event.action in (PoolAction.ALLOC, PoolAction.SEGMENT_ALLOC):
            blocks[event.address] = event.size
        (reserved if segment else live)[event.pool] += blocks.get(event.address, 0) - before
        for name, series in pools.items():
            if not series.times or series.times[-1] != event.time:
                for values in (series.times, series.calls, series.reserved, series.live):
                    values.append(0)
            series.times[-1], series.calls[-1] = event.time, event.call
            series.reserved[-1], series.live[-1] = reserved[name], live[name]
    return sorted(pools.values(), key=lambda s: (s.name != "default", s.name))


def reserved_total(series: Sequence[PoolSeries]) -> list[int]:
    """What all pools together have reserved, over time."""
    return [sum(values) for values in zip(*(pool.reserved for pool in series), strict=True)]


def spark(values: Sequence[int], width: int = 40, top: int | None = None) -> str:
    """A line of block characters, each the largest of its share of ``values``.

    >>> spark([0, 1, 4, 8])
    '▁▂▅█'
    """
    if not values:
        return ""
    count, most = len(values), top or max(values)
    columns = min(width, count)
    peaks = (max(values[i * count // columns : (i + 1) * count // columns]) for i in range(columns))
    return "".join(BARS[max(0, min(7, round(peak / most * 7)))] if most else BARS[0] for peak in peaks)


def bar(part: int, whole: int, width: int = 20) -> str:
    """A horizontal bar of ``width`` cells.

    >>> bar(1, 4, 8)
    '██░░░░░░'
    """
    filled = round(width * min(part, whole) / whole) if whole > 0 and part > 0 else 0
    return "█" * filled + "░" * (width - filled)
