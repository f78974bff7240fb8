"""Buffers are packed as the book says: largest first, each into the tightest gap that those beside it leave."""

from __future__ import annotations

import random

import pytest

from paramgraph_kit.launch.plan import pack, spans


def lies_within(at: int, size: int, most: int) -> bool:
    """Whether a buffer begins at a multiple of ``most`` or lies in one piece between two."""
    return at % most == 0 or at // most == (at + size - 1) // most


def by_the_book(sizes: list[int], conflict: list[int], most: int) -> list[int]:
    """Place after place, in steps of 512 bytes."""
    rounded = [max(-(-size // 512), 1) * 512 for size in sizes]
    placed: dict[int, int] = {}
    for b in sorted(range(len(sizes)), key=lambda n: (-rounded[n], n)):
        taken = sorted((placed[n], placed[n] + rounded[n]) for n in placed if conflict[b] >> n & 1)
        gaps, end = [], 0
        for start, stop in taken:
            if start > end:
                gaps.append((end, start))
            end = max(end, stop)
        found = []
        for begin, stop in gaps:
            at = next(place for place in range(begin, stop + most + 1, 512) if lies_within(place, rounded[b], most))
            if at + rounded[b] <= stop:
                found.append((stop - at, at))
        behind = next(place for place in range(end, end + most + 1, 512) if lies_within(place, rounded[b], most))
        placed[b] = min(found)[1] if found else behind
    return [placed[n] for n in range(len(sizes))]


@pytest.mark.parametrize("seed", range(60))
def test_every_buffer_lies_where_the_book_says(seed: int) -> None:
    # GIVEN buffers of some sizes, some of which live at one time, and blocks of some size
    rng = random.Random(seed)
    count, most = rng.randrange(1, 24), 512 * rng.choice([3, 4, 8, 100])
    sizes = [rng.choice([0, 1, 512, 513, 1024, 1536, 2048, 4000]) for _ in range(count)]
    conflict = [0] * count
    for a in range(count):
        for b in range(a):
            if rng.random() < rng.choice([0.3, 0.7, 0.95]):
                conflict[a] |= 1 << b
                conflict[b] |= 1 << a
    # WHEN packed THEN each lies there, and the total is where the last ends
    offsets, total = pack(sizes, conflict, most)
    assert offsets == by_the_book(sizes, conflict, most)
    assert total == max(at + max(-(-size // 512), 1) * 512 for at, size in zip(offsets, sizes, strict=True))
    # AND each lies in one of the blocks, none of which is larger than it may be but for one buffer's sake
    found = spans(sizes, offsets, most)
    for at, size in zip(offsets, sizes, strict=True):
        assert sum(at in span and at + max(size, 1) - 1 in span for span in found) == 1
    assert all(len(span) <= most or span.start % most == 0 for span in found)
