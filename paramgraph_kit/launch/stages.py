"""In how many stages a partition is launched, so that it holds about as much memory as without graphs.

Ungraphed code frees each saved activation after its last use and makes each gradient when it is computed. A graph
launched in one piece needs all its outputs before the first kernel and holds all its inputs until the last. Cut in
a few stages, each a launch of its own, it takes and gives back memory between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

SLACK = 16 << 20  # bytes more than without graphs that are not worth another launch
MANY = 64  # tensors made before a launch: the device would wait about 0.1 ms for Python


@dataclass(frozen=True, slots=True)
class Lives:
    """Bytes and the nodes between which they are needed."""

    nodes: int
    dying: Sequence[tuple[int, int]]  # inputs that nobody else holds: (bytes, last node that uses it)
    made: Sequence[tuple[int, int]]  # outputs: (bytes, first node that uses it)
    inner: Sequence[tuple[int, int, int]]  # (bytes, first node, last node)


def cut(lives: Lives, most: int) -> list[range]:
    """Runs of nodes, as few as the memory allows and no more than ``most``.

    >>> MIB = 1 << 20  # two activations die as two gradients of their size are made
    >>> cut(Lives(4, dying=[(99 * MIB, 1), (99 * MIB, 3)], made=[(99 * MIB, 1), (99 * MIB, 3)], inner=[]), 8)
    [range(0, 3), range(3, 4)]
    """
    if most < 2 or not lives.nodes:
        return [range(lives.nodes)]
    held, made, count, inner = _profiles(lives)
    least = max(held[t] + made[t + 1] + inner[t] for t in range(lives.nodes))
    slack, many = SLACK, MANY
    while True:
        ranges = _greedy(held, made, count, inner, least + slack, many)
        if len(ranges) <= most:
            return ranges
        slack, many = slack * 2, many * 2


def _profiles(lives: Lives) -> tuple[list[int], list[int], list[int], list[int]]:
    """Inputs held at each node, outputs (bytes, number) made before each node, and what lives inside at each."""
    n = lives.nodes
    die, appear, number, change = [0] * (n + 1), [0] * (n + 1), [0] * (n + 1), [0] * (n + 1)
    for size, last in lives.dying:
        die[last + 1] -= size
    for size, first in lives.made:
        appear[first + 1] += size
        number[first + 1] += 1
    for size, first, last in lives.inner:
        change[first] += size
        change[last + 1] -= size
    die[0] += sum(size for size, _ in lives.dying)
    return list(accumulate(die)), list(accumulate(appear)), list(accumulate(number)), list(accumulate(change))


def _greedy(
    held: Sequence[int], made: Sequence[int], count: Sequence[int], inner: Sequence[int], limit: int, many: int
) -> list[range]:
    n = len(held) - 1
    ranges: list[range] = []
    start, most_inner = 0, 0
    for t in range(n):
        wider = max(most_inner, inner[t])
        if t > start and (held[start] + made[t + 1] + wider > limit or count[t + 1] - count[start] > many):
            ranges.append(range(start, t))
            start, wider = t, inner[t]
        most_inner = wider
    return [*ranges, range(start, n)]
