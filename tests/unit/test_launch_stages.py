"""In how many stages, exactly: the cut is held against one that counts every byte anew."""

from __future__ import annotations

import random

import pytest

from paramgraph_kit.launch.stages import MANY, SLACK, Lives, cut

MIB = 1 << 20


def bytes_of(lives: Lives, first: int, last: int) -> int:
    """What one launch of the nodes from ``first`` to ``last`` needs at most, counted one by one."""
    held = sum(size for size, end in lives.dying if end >= first)
    made = sum(size for size, start in lives.made if start <= last)
    inner = max(sum(size for size, a, b in lives.inner if a <= n <= b) for n in range(first, last + 1))
    return held + made + inner


def expected(lives: Lives, most: int) -> list[range]:
    """As few stages as the least memory and ever more slack allow, each as long as it may be."""
    least = max(bytes_of(lives, n, n) for n in range(lives.nodes))
    slack, many = SLACK, MANY
    while True:
        found, start = [], 0
        for n in range(1, lives.nodes):
            made = sum(start <= first <= n for _, first in lives.made)
            if bytes_of(lives, start, n) > least + slack or made > many:
                found.append(range(start, n))
                start = n
        found.append(range(start, lives.nodes))
        if len(found) <= most:
            return found
        slack, many = 2 * slack, 2 * many


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("most", [2, 3, 5, 8, 99])
def test_a_cut_is_what_counting_every_byte_gives(seed: int, most: int) -> None:
    # GIVEN random lives, some much larger than the slack, some small and many
    rng = random.Random(seed)
    nodes = rng.randrange(2, 60)
    size = [1, 300, MIB, 20 * MIB, 90 * MIB]
    count = rng.choice([3, 20, 150])
    lives = Lives(
        nodes,
        dying=[(rng.choice(size), rng.randrange(nodes)) for _ in range(count)],
        made=[(rng.choice(size), rng.randrange(nodes)) for _ in range(count)],
        inner=[(rng.choice(size), *sorted(rng.choices(range(nodes), k=2))) for _ in range(count // 2)],  # type: ignore[misc]
    )
    # WHEN cut THEN each stage is the longest that its memory allows, and no more than asked for
    assert cut(lives, most) == expected(lives, most)


def test_what_lives_inside_counts_where_it_lives() -> None:
    # GIVEN two inner buffers of 40 MiB, one after the other, beside activations that die and gradients that appear
    dying, made = [(30 * MIB, 1), (30 * MIB, 3)], [(30 * MIB, 1), (30 * MIB, 3)]
    apart = Lives(4, dying, made, inner=[(40 * MIB, 0, 1), (40 * MIB, 2, 3)])
    together = Lives(4, dying, made, inner=[(40 * MIB, 0, 3), (40 * MIB, 0, 3)])
    # WHEN cut THEN both keep to the least that a node needs, and more inside is no reason to cut
    assert cut(apart, 8) == cut(together, 8) == [range(3), range(3, 4)]


def test_exactly_the_slack_is_not_too_much_and_a_byte_more_is() -> None:
    # GIVEN one launch that needs just the slack more than the least
    for more, stages in ((0, 1), (1, 2)):
        lives = Lives(2, dying=[(SLACK + more, 0)], made=[(SLACK + more, 1)], inner=[])
        # WHEN cut THEN only a byte above it is worth another launch
        assert len(cut(lives, 8)) == stages


def test_so_many_tensors_are_made_before_one_launch_and_one_more_is_too_many() -> None:
    # GIVEN tensors of no size that appear with the nodes
    for count, stages in ((MANY, 1), (MANY + 1, 2)):
        lives = Lives(count, dying=[], made=[(1, n) for n in range(count)], inner=[])
        # WHEN cut THEN the device waits for no more than so many
        assert len(cut(lives, 8)) == stages
    # AND what is made before the first node cannot come later
    assert cut(Lives(1, dying=[], made=[(1, 0)] * (MANY + 1), inner=[]), 8) == [range(1)]


@pytest.mark.parametrize("most", [0, 1])
def test_one_stage_is_one_stage(most: int) -> None:
    # GIVEN lives that would be cut WHEN only one stage is allowed, or there is one node THEN there is one
    lives = Lives(4, dying=[(99 * MIB, 1)], made=[(99 * MIB, 3)], inner=[])
    assert cut(lives, most) == [range(4)]
    assert cut(Lives(1, [(99 * MIB, 0)], [(99 * MIB, 0)], []), 8) == [range(1)]
    # AND two where two are
    assert len(cut(Lives(4, [(99 * MIB, 1)], [(99 * MIB, 3)], []), 2)) == 2


def test_what_is_allowed_is_doubled_until_there_are_few_enough() -> None:
    # GIVEN as many tensors as nodes, and activations that die as gradients of their size are made
    small = Lives(200, dying=[], made=[(1, n) for n in range(200)], inner=[])
    large = [(SLACK, n) for n in range(6)]
    # WHEN cut in two at most THEN twice as many are made before a launch, and twice as much is held
    assert [len(cut(small, most)) for most in (8, 2)] == [4, 2]
    assert cut(small, 2) == [range(128), range(128, 200)]
    assert cut(Lives(6, large, large, []), 3) == [range(2), range(2, 4), range(4, 6)]
    assert cut(Lives(6, large, large, []), 2) == [range(3), range(3, 6)]
