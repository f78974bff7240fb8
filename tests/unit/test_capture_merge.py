from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from paramgraph_kit.capture.words import _groups, merge_ambiguous
from paramgraph_kit.driver.api import RawAllocation as Allocation

NODES = 20


def clash(a: Allocation, b: Allocation) -> bool:
    """Whether bytes and lives of two allocations both overlap."""
    bytes_shared = a.address < b.address + b.size and b.address < a.address + a.size
    ends = [NODES + 1 if x.died is None else x.died for x in (a, b)]
    return bytes_shared and a.born < ends[1] and b.born < ends[0]


def covers(a: Allocation, b: Allocation) -> bool:
    """Whether ``a`` has all bytes of ``b`` for all of its life."""
    whole = a.address <= b.address and b.address + b.size <= a.address + a.size
    return whole and a.born <= b.born and (a.died is None or (b.died is not None and b.died <= a.died))


def test_what_follows_in_time_or_in_space_stays_apart() -> None:
    # GIVEN a block that is freed and used again in part, and a neighbour
    apart = [Allocation(0, 4096, 0, 3), Allocation(0, 1024, 3), Allocation(4096, 512, 0)]
    # WHEN ambiguous ones are joined THEN nothing is
    assert merge_ambiguous(apart) == apart


def test_what_overlaps_in_both_is_joined_with_its_layout() -> None:
    # GIVEN two allocations whose lives are only known to overlap, at overlapping addresses
    unsure = [Allocation(9000, 8, 0), Allocation(1024, 2048, 2, 6), Allocation(2048, 4096, 5, 9)]
    # WHEN they are joined THEN one allocation has the bytes and the lives of both, in the place of the first
    assert merge_ambiguous(unsure) == [Allocation(9000, 8, 0), Allocation(1024, 5120, 2, 9)]


def test_one_that_never_dies_makes_the_joined_one_live_on() -> None:
    # GIVEN two ambiguous allocations, one of which is an output
    unsure = [Allocation(0, 512, 0, 4), Allocation(0, 64, 2)]
    # WHEN they are joined THEN the joined one is never freed
    assert merge_ambiguous(unsure) == [Allocation(0, 512, 0, None)]


def test_joining_goes_on_until_nothing_is_ambiguous() -> None:
    # GIVEN B and A, which overlap, and C, which overlaps neither: its bytes are B's, and dies before B is born
    c, b, a = Allocation(0, 200, 0, 3), Allocation(100, 200, 5, 10), Allocation(250, 50, 0, 6)
    # WHEN B and A are joined THEN the result, alive from 0 at byte 100, would be taken for C: all three are one
    assert merge_ambiguous([c, b, a]) == [Allocation(0, 300, 0, 10)]


def test_an_allocation_that_no_node_can_use_joins_nothing() -> None:
    # GIVEN one that was freed before any node was recorded, at an address that is used again at once
    dead = [Allocation(0, 512, 4, 4), Allocation(0, 512, 4, 7)]
    # WHEN ambiguous ones are joined THEN both stay
    assert merge_ambiguous(dead) == dead


@pytest.mark.parametrize("seed", range(30))
def test_after_joining_no_address_means_two_allocations_at_one_time(seed: int) -> None:
    # GIVEN random allocations, among them many that overlap in space and time
    rng = random.Random(seed)
    drawn: list[Allocation] = []
    for _ in range(rng.randrange(2, 14)):
        born = rng.randrange(NODES)
        died = rng.choice([None, rng.randint(born + 1, NODES)])
        drawn.append(Allocation(512 * rng.randrange(40), 512 * rng.randint(1, 8), born, died))
    # WHEN ambiguous ones are joined
    joined = merge_ambiguous(drawn)
    # THEN no two of the result clash, and each of the drawn ones lies within exactly one of them
    assert not any(clash(a, b) for i, a in enumerate(joined) for b in joined[:i])
    for one in drawn:
        assert [covers(whole, one) for whole in joined].count(True) == 1
    # AND what clashed with nothing is still there as it was
    assert all(one in joined for one in alone(drawn, joined))


def alone(drawn: Sequence[Allocation], joined: Sequence[Allocation]) -> list[Allocation]:
    """Those that clash with no other, nor with what the others were joined into."""
    return [
        one
        for i, one in enumerate(drawn)
        if not any(clash(one, other) for k, other in enumerate(drawn) if k != i)
        and not any(clash(one, whole) for whole in joined if whole != one)
    ]


def compare(name: str) -> Any:
    """A method of that name that counts how often it is called."""

    def counting(self: Compared, other: Any) -> Any:
        Compared.times += 1
        return getattr(int, name)(self, other)

    return counting


class Compared(int):
    """A number that counts how often it, or any other of its kind, is compared."""

    times = 0
    __lt__, __gt__, __le__, __ge__ = map(compare, ("__lt__", "__gt__", "__le__", "__ge__"))
    __hash__ = int.__hash__


def asked(count: int) -> int:
    """Comparisons for so many allocations that take turns at a few addresses, beside as many that stay."""
    turns = [Allocation(Compared(512 * (k % 4)), 512, Compared(k), Compared(k + 3)) for k in range(count)]
    stay = [Allocation(Compared(4096 + 512 * k), 512, Compared(k)) for k in range(count)]
    Compared.times = 0
    assert len(merge_ambiguous(turns + stay)) == 2 * count
    return Compared.times


def test_work_grows_with_the_number_of_allocations_and_not_with_its_square() -> None:
    # GIVEN captures of two lengths WHEN ambiguous allocations are looked for
    few, many = asked(500), asked(4000)
    # THEN eight times as many ask for little more than eight times as much
    assert many < 14 * few
    assert many < 60 * 2 * 4000


def test_what_two_reach_together_is_met_in_the_same_look() -> None:
    # GIVEN a large one, one in it that lives longer, and one that is in the first's bytes and the second's time
    large, inside, later = Allocation(0, 100, 0, 5), Allocation(10, 10, 2, 7), Allocation(50, 10, 6, 8)
    # WHEN looked at once THEN all three are one, in any order
    for rows in ([large, inside, later], [later, inside, large], [inside, later, large]):
        assert _groups(rows) == [rows]
    # AND what is in the bytes of neither, or in the time of neither, stays apart
    for apart in (Allocation(100, 10, 6, 8), Allocation(50, 10, 7, 8)):
        assert _groups([large, inside, apart]) == [[large, inside], [apart]]
