"""Waits of the user's streams in a graph: what is left of them in a region, and in a joint graph."""

from __future__ import annotations

import importlib
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.partition import lanes

aten = torch.ops.aten
_KNOWN = {
    "record_event": "int event, int stream",
    "wait_event": "int event, int stream",
    "wait_stream": "int waiting, int awaited",
    "synchronize_event": "int event",
    "synchronize_stream": "int stream",
    "synchronize_device": "int device",
    "sync_dealloc": "int event, int stream, Tensor gone",
    "record_stream": "Tensor used, int stream",
    "fork": "int before, int behind",
}
_ours: Any = torch.library.Library("streams", "FRAGMENT")  # type: ignore[no-untyped-call]


def define_missing() -> None:
    """The operations as torch's newer versions define them: graphs of older ones do not carry streams."""
    with suppress(ModuleNotFoundError):  # older ones know of no streams
        importlib.import_module("torch._dynamo.variables.streams")
    for name, arguments in _KNOWN.items():
        if not hasattr(torch.ops.streams, name):
            _ours.define(f"{name}({arguments}) -> ()")


@pytest.fixture(autouse=True, scope="module")
def _known() -> None:
    define_missing()


def call(graph: torch.fx.Graph, target: Any, *args: Any, lane: int = 0, tag: str = "") -> torch.fx.Node:
    node = graph.call_function(target, args)
    node.meta["custom"] = {"stream": lane}
    if tag:
        node.meta["partitioner_tag"] = tag
    if args and isinstance(args[0], torch.fx.Node):
        node.meta["val"] = torch.ones(2)
    return node


def calls(graph: torch.fx.Graph) -> list[Any]:
    return [(n.target, *n.args) if n.target in (lanes._mark, lanes._wait) else n.target for n in graph.nodes]


def test_a_wait_for_a_recorded_event_is_waited_for_though_nothing_is_taken_over() -> None:
    # GIVEN a kernel on the user's stream 1, an event behind it, a wait of the main stream for it and for another one
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    first = call(graph, aten.sin.default, x, lane=1)
    call(graph, torch.ops.streams.record_event.default, 3, 1)
    call(graph, torch.ops.streams.wait_event.default, 4, 0)
    call(graph, torch.ops.streams.wait_event.default, 3, 0)
    second = call(graph, aten.cos.default, x)
    graph.output((first, second))
    # WHEN its lanes are written
    lanes.write_lanes(graph, {})
    # THEN the main one waits for that event alone, before its kernel
    found = calls(graph)
    assert found.index((lanes._mark, 1, "mark0")) < found.index((lanes._wait, 0, "mark0")) < found.index(second.target)
    assert sum(isinstance(each, tuple) and each[0] is lanes._wait for each in found) == 1


def test_in_a_joint_graph_waits_before_the_backward_are_the_forward_s_and_later_ones_go() -> None:
    # GIVEN a joint graph whose tangents come first, with a wait in its forward and one in its backward
    graph = torch.fx.Graph()
    x, tangent = graph.placeholder("x"), graph.placeholder("tangent")
    tangent.meta["partitioner_tag"] = "is_backward"
    y = call(graph, aten.sin.default, x, tag="is_forward")
    kept = call(graph, torch.ops.streams.wait_event.default, 3, 0)
    z = call(graph, aten.mul.Tensor, tangent, y, tag="is_backward")
    gone = call(graph, torch.ops.streams.wait_event.default, 3, 0)
    graph.output((y, z))
    # WHEN it is to be cut THEN the first stays with the forward
    lanes.before_partitioning(torch.fx.GraphModule(torch.nn.Module(), graph))
    left = list(graph.nodes)
    assert kept in left
    assert kept.meta["partitioner_tag"] == "must_be_in_forward"
    assert gone not in left


def test_a_deallocation_that_waits_is_a_wait() -> None:
    # GIVEN what torch writes where a tensor of another stream dies WHEN normalized THEN it is a wait
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call(graph, torch.ops.streams.sync_dealloc.default, 3, 1, x)
    graph.output(x)
    lanes.normalize(graph)
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [torch.ops.streams.wait_event.default]


def test_a_graph_owes_streams_their_events_once_and_the_main_stream_nothing() -> None:
    # GIVEN kernels on streams 0 and 2, events recorded on 3, awaited before and after that, and a wait of 4 for 5
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    call(graph, aten.sin.default, x)
    call(graph, aten.cos.default, x, lane=2)
    call(graph, torch.ops.streams.wait_event.default, 10, 0)
    call(graph, torch.ops.streams.record_event.default, 11, 3)
    call(graph, torch.ops.streams.wait_event.default, 11, 0)
    call(graph, torch.ops.streams.wait_stream.default, 4, 5)
    # WHEN asked THEN those streams, that event and what was awaited from outside are known
    around = lanes.Around(graph.nodes)
    assert (around.streams, around.recorded, around.awaited) == ((2, 3, 4, 5), [11], [10])


def test_each_lane_has_one_stream_for_good() -> None:
    # GIVEN a device WHEN asked for the streams of lanes THEN each has its own, the same each time
    made: list[object] = []

    def stream() -> object:
        made.append(object())
        return made[-1]

    cuda = SimpleNamespace(current_device=lambda: 77, Stream=stream)
    found = [lanes._stream_for(cuda, lane) for lane in (1, 2, 1)]
    assert found == [made[0], made[1], made[0]]
    assert len(made) == 2


def test_a_lane_that_waits_for_one_that_has_done_nothing_waits_for_nothing() -> None:
    # GIVEN stream 1 that waits for the main one and for one without work, and a kernel there
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    call(graph, torch.ops.streams.wait_stream.default, 1, 0)
    call(graph, torch.ops.streams.wait_stream.default, 1, 6)
    last = call(graph, aten.sin.default, x, lane=1)
    graph.output(last)
    # WHEN its lanes are written THEN it waits once
    lanes.write_lanes(graph, {})
    found = calls(graph)
    assert found[1:4] == [(lanes._mark, 0, "mark0"), (lanes._wait, 1, "mark0"), lanes._enter]
    assert [each for each in found if isinstance(each, tuple)] == found[1:3]
