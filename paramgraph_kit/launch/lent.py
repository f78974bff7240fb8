"""Workspace in memory that a graph writes only later: gradients that each launch makes anew and nobody reads before.

Ungraphed code has no gradients yet while it keeps most activations. A launch has the memory of all its gradients from
the beginning, so activations that are gone by the time may lie there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

LEAST = 1 << 20  # bytes of what is worth a place there


class Order(Protocol):
    """The order of nodes in a graph."""

    def precedes(self, first: int, then: int) -> bool:
        """Whether every use of one allocation comes before every use of the other."""


def lend(
    order: Order, sizes: Sequence[int], inner: Sequence[int], lent: Mapping[int, int], grain: int
) -> dict[int, tuple[int, int]]:
    """Where some of the allocations ``inner`` lie at a launch: which of ``lent``, and the offset in it.

    ``lent`` are allocations that may hold anything before they are first used, with their bytes. The largest are
    placed first, each in the smallest that has room beside others of its time, at multiples of ``grain``.
    """
    hosts = sorted((i for i in lent if lent[i] >= LEAST), key=lambda i: (lent[i], i))
    found: dict[int, tuple[int, int]] = {}
    guests: dict[int, list[tuple[int, int, int]]] = {host: [] for host in hosts}  # offset, end, which: in this order
    for i in sorted((i for i in inner if sizes[i] >= LEAST), key=lambda i: (-sizes[i], i)):
        for host in hosts:
            if lent[host] < sizes[i] or not order.precedes(i, host):
                continue
            offset = _room(order, i, sizes[i], lent[host], guests[host], grain)
            if offset is not None:
                found[i] = host, offset
                guests[host] = sorted([*guests[host], (offset, offset + sizes[i], i)])
                break
    return found


def _room(
    order: Order, mine: int, size: int, whole: int, guests: Sequence[tuple[int, int, int]], grain: int
) -> int | None:
    """The first offset where it meets nobody of its time."""
    at = 0
    for start, end, other in guests:
        if order.precedes(mine, other) or order.precedes(other, mine):
            continue
        if start - at >= size:
            break
        at = max(at, -(-end // grain) * grain)
    return at if at + size <= whole else None
