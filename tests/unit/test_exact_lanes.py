"""Lanes of a region to the last wait, and which regions have any: told by the notes on their operations alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paramgraph_kit.partition import lanes
from paramgraph_kit.partition.nodes import kind_of
from paramgraph_kit.partition.region import build_region
from tests.unit.test_partition_lanes import call, calls

aten = torch.ops.aten


def taking(graph: torch.fx.Graph) -> torch.fx.Node:
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    return x


def waits(graph: torch.fx.Graph) -> list[Any]:
    return [each for each in calls(graph) if isinstance(each, tuple) and each[0] is lanes._wait]


def test_who_has_waited_for_a_later_kernel_does_not_forget_it_with_an_older_one() -> None:
    # GIVEN stream 1 with two kernels, a kernel of stream 2 behind the first, and three of the main stream that follow
    # the second, that of stream 2, which has seen the first only, and the second again
    graph = torch.fx.Graph()
    x = taking(graph)
    first = call(graph, aten.sin.default, x, lane=1)
    beside = call(graph, aten.cos.default, x, lane=2)
    second = call(graph, aten.exp.default, x, lane=1)
    last = [call(graph, each, x) for each in (aten.tan.default, aten.neg.default, aten.abs.default)]
    graph.output((first, beside, second, *last))
    # WHEN lanes are written
    before = {beside: {first}, last[0]: {second}, last[1]: {beside}, last[2]: {second}}
    lanes.write_lanes(graph, before)
    # THEN the last one waits for nothing: it is behind that already
    assert waits(graph) == [(lanes._wait, 2, "mark0"), (lanes._wait, 0, "mark1"), (lanes._wait, 0, "mark2")]
    found = calls(graph)
    assert found.index((lanes._wait, 0, "mark1")) < found.index(aten.tan.default)
    assert found.index((lanes._wait, 0, "mark2")) < found.index(aten.neg.default)


def region_of(streams: tuple[int, int], graphed: bool, outside: bool = False) -> Any:
    """Two kernels, the second of which follows the first, on these streams; ``outside``: and one of another region."""
    graph = torch.fx.Graph()
    x = taking(graph)
    other = call(graph, aten.abs.default, x)
    first = call(graph, aten.sin.default, x, lane=streams[0])
    second = call(graph, aten.cos.default, x, lane=streams[1])
    graph.output((first, second))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    kinds = {node: kind_of(node) for node in graph.nodes}
    before = {second: {first, other} if outside else {first}}
    return build_region(module, 0, [first, second], [x], [first, second], kinds, graphed, (), "cpu", before)


@pytest.mark.parametrize(
    ("streams", "graphed", "has"),
    [((0, 1), True, True), ((2, 1), True, True), ((1, 1), True, False), ((0, 0), True, False), ((0, 1), False, False)],
)
def test_a_graphed_region_on_two_streams_has_lanes_and_no_other_one(
    streams: tuple[int, int], graphed: bool, has: bool
) -> None:
    # GIVEN two kernels on one stream or two WHEN they become a region, graphed or not
    region = region_of(streams, graphed)
    # THEN its code enters lanes where it is graphed and on several, else it is the module's
    assert (region.run != region.module.forward) is has


@pytest.mark.parametrize("outside", [False, True])
def test_lanes_wait_for_kernels_of_their_own_region(outside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a kernel that follows one of the other lane, and maybe one of another region
    written: list[Any] = []
    monkeypatch.setattr(
        "paramgraph_kit.partition.region.write_lanes",
        lambda graph, before: written.append({n.target: {b.target for b in of} for n, of in before.items()}),
    )
    # WHEN lanes are written THEN they are told of the first, in the copy
    region_of((0, 1), True, outside)
    assert written == [{aten.sin.default: set(), aten.cos.default: {aten.sin.default}}]
