"""Lanes: what runs beside what, from nothing but the edges of a graph."""

from __future__ import annotations

import random

import pytest

from paramgraph_kit.backend.lanes import lanes_of


def ancestors(deps: list[tuple[int, ...]]) -> list[set[int]]:
    found: list[set[int]] = []
    for before in deps:
        found.append(set(before).union(*(found[each] for each in before)))
    return found


def test_a_chain_is_one_lane_and_an_empty_graph_none() -> None:
    assert lanes_of([(), (0,), (1,)]) == [0, 0, 0]
    assert lanes_of([]) == []


def test_the_longest_way_is_lane_0_whoever_comes_first() -> None:
    # GIVEN a copy that was recorded before the kernels beside it WHEN laid out THEN the kernels are lane 0
    assert lanes_of([(), (), (1,), (0, 2)]) == [1, 0, 0, 0]


def test_forks_one_after_the_other_use_one_lane_again() -> None:
    # GIVEN a fork that is joined, and another one later
    deps = [(), (0,), (0,), (2,), (1, 3), (4,), (4,), (6,), (5, 7)]
    # WHEN laid out THEN the second takes the lane that the first has left
    assert lanes_of(deps) == [0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_forks_at_the_same_time_have_lanes_of_their_own() -> None:
    # GIVEN three branches at once WHEN laid out THEN no two share a lane
    assert sorted(lanes_of([(), (0,), (0,), (0,), (1, 2, 3)])[1:4]) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(30))
def test_what_may_run_at_the_same_time_is_never_on_one_lane(seed: int) -> None:
    # GIVEN a random graph in topological order
    rng = random.Random(seed)
    deps = [tuple(sorted(rng.sample(range(n), min(n, rng.choice([0, 1, 1, 1, 2, 3]))))) for n in range(60)]
    # WHEN laid out THEN two nodes of one lane always wait for one another, and lane 0 is used
    lanes, before = lanes_of(deps), ancestors(deps)
    assert all(a in before[b] for b in range(60) for a in range(b) if lanes[a] == lanes[b])
    assert 0 in lanes


def test_of_two_equal_ways_the_kernels_are_the_main_one() -> None:
    # GIVEN a copy beside a kernel, the copy first WHEN laid out THEN the kernel is on lane 0, however long both are
    assert lanes_of([(), (0,), (0,), (1, 2)], [True, False, True, True]) == [0, 1, 0, 0]
    assert lanes_of([(), (0,), (0,), (1,), (3, 2)], [True, False, True, False, True]) == [0, 0, 1, 0, 0]
