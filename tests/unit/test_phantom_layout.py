"""Where phantom allocations lie: what an address has in common with its twin on the other side."""

from __future__ import annotations

import random

import pytest

from paramgraph_kit.driver.phantom_layout import GAP, Layout
from paramgraph_kit.trace.errors import RefusedError

SIDES = (0, 1)
FIXED, ELSEWHERE = (0x1A80 << 32, 0x2B80 << 32), (0x7E12_3460_0000, 0x7F01_0020_0000)


@pytest.mark.parametrize("bases", [FIXED, ELSEWHERE], ids=["where asked for", "where the system had room"])
def test_addresses_have_no_part_in_common_that_may_be_a_number(bases: tuple[int, int]) -> None:
    # GIVEN 2,000 allocations of any size and alignment, as both sides make them
    rng = random.Random(0)
    first, second = (Layout(base, 8 << 40, side) for side, base in zip(SIDES, bases, strict=True))
    for _ in range(2000):
        size, residue = rng.choice([1, 512, 5000, 3 << 20, 1 << 30]), rng.choice([0, 0, 1, 4, 16, 128])
        inside = rng.randrange(size + 1)
        a, b = first.place(size, residue) + inside, second.place(size, 3 * residue) + inside
        # WHEN their bytes are compared THEN those differ that a number of two bytes or more would have in common
        assert [byte for byte in (1, 2) if a >> 8 * byte & 255 == b >> 8 * byte & 255] == []
        assert a >> 32 != b >> 32


def test_no_two_allocations_are_equally_far_apart_on_both_sides() -> None:
    # GIVEN allocations as both sides make them WHEN any two are compared THEN each pair's distance is another one
    sizes = [random.Random(0).choice([1, 512, 4 << 20]) for _ in range(60)]
    starts = []
    for side in SIDES:
        layout = Layout(FIXED[side], 512 << 30, side)
        starts.append([layout.place(size) for size in sizes])
        assert starts[-1] == layout.starts
        assert all(b - a - size >= GAP for a, b, size in zip(starts[-1], starts[-1][1:], sizes, strict=False))
        assert all(start % 512 == 0 for start in starts[-1])
    differing = {b - a for a, b in zip(*starts, strict=True)}
    assert len(differing) == len(sizes)


def test_what_is_rewound_is_handed_out_again_and_a_full_range_says_so() -> None:
    # GIVEN a range of 64 MiB
    layout = Layout(1 << 44, 64 << 20, 1)
    layout.place(100, 16)
    mark = layout.mark()
    again = [layout.place(size) for size in (8, 512, 1 << 20)]
    # WHEN rewound THEN the same addresses come
    layout.rewind(mark)
    assert [layout.place(size) for size in (8, 512, 1 << 20)] == again == layout.starts[1:]
    # WHEN more is asked for than there is THEN it is refused, with the number, and nothing has changed
    with pytest.raises(RefusedError, match=r"one call addresses more than 0 GiB; compile smaller blocks"):
        layout.place(64 << 20)
    assert layout.starts[1:] == again
    assert layout.place(8) > again[-1]
