"""The order of kernels: few partitions where memory allows, and nothing before what it needs."""

from __future__ import annotations

import itertools
import random
from unittest import mock

import pytest
import torch
import torch.fx
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode

from paramgraph_kit.partition import order as ordering
from paramgraph_kit.partition.order import memory_budget, schedule

Edges = dict[torch.fx.Node, set[torch.fx.Node]]


def graph_of(edges: list[tuple[int, ...]], sizes: list[int]) -> tuple[list[torch.fx.Node], Edges]:
    """Kernels that each take the results of some earlier ones, on fake memory of their own."""
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []
    with FakeTensorMode():
        for before, size in zip(edges, sizes, strict=True):
            node = graph.call_function(torch.ops.aten.cat.default, ([nodes[k] for k in before],))
            node.meta["val"] = torch.empty(size)
            nodes.append(node)
    return nodes, {node: {nodes[k] for k in before} for node, before in zip(nodes, edges, strict=True)}


def ordered(
    edges: list[tuple[int, ...]], outside: set[int], budget: float, sizes: list[int] | None = None
) -> list[int]:
    nodes, before = graph_of(edges, sizes or [8] * len(edges))
    with mock.patch.object(ordering, "memory_budget", return_value=budget):
        found = schedule(nodes, before, {nodes[k] for k in outside}, {nodes[-1]}, "cpu")
    return [nodes.index(node) for node in found]


@pytest.mark.skipif(torch.__version__ < "2.12", reason="Inductor of this torch has no such setting")
def test_the_budget_is_inductor_s() -> None:
    # GIVEN Inductor's setting WHEN changed THEN the order keeps to it
    with config.patch({"triton.cudagraph_partition_memory_budget": 7.5}):
        assert memory_budget() == 7.5


def cuts(order: list[int], outside: set[int]) -> int:
    return sum((a in outside) != (b in outside) for a, b in itertools.pairwise(order))


def test_without_memory_to_spare_only_loose_ends_move() -> None:
    # GIVEN two chains with an obstacle in each, whose heads are large, an ungraphed kernel that needs nothing (6), and
    # one that nobody waits for (7)
    edges: list[tuple[int, ...]] = [(), (0,), (1,), (), (3,), (4,), (), (1,), (2, 5, 6)]
    sizes = [4096 if n in (0, 3) else 8 for n in range(9)]
    # WHEN there is no memory for both heads THEN the loose ends go to the front and the back, and all others stay
    assert ordered(edges, {1, 4, 6, 7}, 1.1, sizes) == [6, 0, 1, 2, 3, 4, 5, 8, 7]


def test_what_goes_to_the_host_to_save_memory_goes_when_it_was_to_go() -> None:
    # GIVEN a chain of large results, each copied away when the next is made, the copies awaited by nobody
    edges: list[tuple[int, ...]] = [(), (), (0,), (0,), (2,), (2,), (4,), (4,), (6,)]
    sizes = [4096 if n % 2 == 0 else 8 for n in range(9)]
    # WHEN ordered THEN they stay there: behind the last of the chain all of it would be alive
    assert ordered(edges, {1, 3, 5, 7}, 1.1, sizes) == list(range(9))
    # AND where memory is no matter there is one piece
    assert cuts(ordered(edges, {1, 3, 5, 7}, 9.0, sizes), {1, 3, 5, 7}) <= 2


def test_with_memory_to_spare_all_ungraphed_kernels_that_can_run_together_do() -> None:
    # GIVEN two chains with an obstacle in each WHEN memory allows THEN both obstacles run side by side
    edges: list[tuple[int, ...]] = [(), (0,), (1,), (), (3,), (4,), (2, 5)]
    order = ordered(edges, {1, 4}, 9.0)
    assert order == [0, 3, 1, 4, 2, 5, 6]
    assert cuts(order, {1, 4}) == 2
    # AND in the order of the program where it does not
    assert ordered(edges, {1, 4}, 0.0) == list(range(7))


def test_what_is_ungraphed_and_needs_nothing_comes_first() -> None:
    # GIVEN a graphed kernel and an ungraphed one that need nothing, and one that needs both WHEN ordered THEN there is
    # one piece to graph
    assert ordered([(), (), (0, 1)], {1}, 9.0) == [1, 0, 2]


@pytest.mark.parametrize("budget", [0.0, 1.0, 1.1, 9.0])
@pytest.mark.parametrize("seed", range(15))
def test_every_order_keeps_every_dependency(seed: int, budget: float) -> None:
    # GIVEN a random graph, a third of it ungraphed
    rng = random.Random(seed)
    count = rng.randrange(2, 25)
    edges = [tuple(sorted(rng.sample(range(n), min(n, rng.randrange(3))))) for n in range(count)]
    outside = {n for n in range(count) if rng.random() < 0.34}
    # WHEN ordered THEN each kernel is there once, after all that it needs, and no more often cut than as it was
    order = ordered(edges, outside, budget, [rng.choice([1, 64, 4096]) for _ in edges])
    assert sorted(order) == list(range(count))
    place = {node: at for at, node in enumerate(order)}
    assert all(place[earlier] < place[node] for node, before in enumerate(edges) for earlier in before)
    assert cuts(order, outside) <= cuts(list(range(count)), outside) + 1
