"""The order of kernels: few partitions where memory allows, and nothing before what it needs."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.fx
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensorMode

from paramgraph_kit.partition.order import schedule

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
    with config.patch({"triton.cudagraph_partition_memory_budget": budget}):
        found = schedule(nodes, before, {nodes[k] for k in outside}, {nodes[-1]})
    return [nodes.index(node) for node in found]


def cuts(order: list[int], outside: set[int]) -> int:
    return sum((a in outside) != (b in outside) for a, b in itertools.pairwise(order))


# 0 and 3 need nothing, 2 and 5 are awaited by nobody; 4 is awaited by 6.
EDGES: list[tuple[int, ...]] = [(), (0,), (1,), (), (1,), (4,), (4,)]


def test_without_memory_to_spare_only_loose_ends_move() -> None:
    # GIVEN kernels of which three are ungraphed: one needs nothing, one is awaited by nobody, one is between two
    # WHEN no order may hold more memory THEN the first goes to the front, the second to the back, the third stays
    assert ordered(EDGES, {3, 2, 4}, 0.0) == [3, 0, 1, 4, 5, 6, 2]


def test_an_ungraphed_kernel_that_needs_something_never_comes_first() -> None:
    # GIVEN an ungraphed kernel with a producer that later ones wait for, and one that nobody waits for
    # WHEN only loose ends move THEN the first keeps its place
    assert ordered([(), (0,), (1,)], {1}, 0.0) == [0, 1, 2]
    assert ordered([(), (0,), (1,), (1,)], {1, 2}, 0.0) == [0, 1, 3, 2]


def test_with_memory_to_spare_all_ungraphed_kernels_that_can_run_together_do() -> None:
    # GIVEN two chains with an obstacle in each WHEN memory allows THEN both obstacles run side by side
    edges: list[tuple[int, ...]] = [(), (0,), (1,), (), (3,), (4,), (2, 5)]
    order = ordered(edges, {1, 4}, 9.0)
    assert order == [0, 3, 1, 4, 2, 5, 6]
    assert cuts(order, {1, 4}) == 2
    # AND in the order of the program where it does not
    assert ordered(edges, {1, 4}, 0.0) == list(range(7))


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
