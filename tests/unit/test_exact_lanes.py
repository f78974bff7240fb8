"""Lanes of a region to the last wait, and which regions have any: told by the notes on their operations alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from paramgraph_kit.partition import lanes
from paramgraph_kit.partition.nodes import kind_of
from paramgraph_kit.partition.region import build_region
from tests.unit.test_partition_lanes import call, calls, define_missing

aten = torch.ops.aten


@pytest.fixture(autouse=True, scope="module")
def _known() -> None:
    define_missing()


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


# -- what a joint graph and a region keep of the user's waits


def test_the_host_s_waits_and_events_that_measure_time_stand_out_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN waits of the host, events of which one measures time, waits of streams, and a fork that nobody takes
    streams = torch.ops.streams
    graph = torch.fx.Graph()
    x = taking(graph)
    asked: list[Any] = []

    def measures(number: Any) -> bool:
        asked.append(number)
        return bool(number == 5)

    monkeypatch.setattr(lanes, "_measures_time", measures)
    for operation, numbers in (
        (streams.synchronize_event.default, (3,)),
        (streams.record_event.default, (5, 1)),
        (streams.record_event.default, (6, 1)),
        (streams.wait_event.default, (5, 2)),
        (streams.synchronize_stream.default, (2,)),
        (streams.fork.default, (0, 1)),
    ):
        call(graph, operation, *numbers).meta["said"] = str(operation)
    call(graph, streams.sync_dealloc.default, 7, 8, x)
    call(graph, streams.record_stream.default, x, 1)
    graph.output(x)
    # WHEN normalized
    lanes.normalize(graph)
    # THEN the host's waits and that event are calls of ours, with all that was noted, a deallocation waits, and of
    # operations of streams alone nothing else is changed
    found = [(n.target, n.args, n.meta.get("said")) for n in graph.nodes if n.op == "call_function"]
    assert found == [
        (lanes.host_waits, (), "streams.synchronize_event.default"),
        (lanes.record_now, (5,), "streams.record_event.default"),
        (streams.record_event.default, (6, 1), "streams.record_event.default"),
        (streams.wait_event.default, (5, 2), "streams.wait_event.default"),
        (lanes.host_waits, (), "streams.synchronize_stream.default"),
        (streams.fork.default, (0, 1), "streams.fork.default"),
        (streams.wait_event.default, (7, 8), None),
    ]
    assert asked == [5, 6]


class Events:
    """Streams and events that write down what is done, by their names."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.made = 0

    def stream(self, name: str) -> Any:
        stream = mock.Mock()
        stream.name = name
        stream.wait_event = lambda event: self.done.append((name, "waits for", event.name))
        stream.wait_stream = lambda other: self.done.append((name, "follows", other.name))
        stream.synchronize = lambda: self.done.append((name, "is waited for"))
        return stream

    def event(self, name: str = "") -> Any:
        self.made += 1
        event = mock.Mock()
        event.name = name or f"event {self.made}"
        event.record = lambda stream: self.done.append((event.name, "on", stream.name))
        return event


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """In the place of the device's; all work is called on the stream "here"."""
    events, here = Events(), Events.stream
    current = here(events, "here")
    cuda = SimpleNamespace(
        current_stream=lambda: current,
        Event=events.event,
        set_stream=lambda stream: events.done.append(("enter", stream.name)),
    )
    monkeypatch.setattr(lanes, "twin", lambda: cuda)
    monkeypatch.setattr(lanes, "_stream_for", lambda cuda, lane: events.stream(f"lane {lane}"))
    return events


@pytest.mark.parametrize("captures", [False, True])
def test_a_region_s_lanes_begin_where_it_does_and_are_joined_where_it_ends(
    captures: bool, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a region's code that marks, waits and enters, in a capture or not
    kept = mock.MagicMock()
    driver = SimpleNamespace(is_capturing=lambda: captures, stream_kept=kept)
    monkeypatch.setattr(lanes, "driver", lambda: driver)
    used = mock.Mock(spec=torch.Tensor)

    def run(boxed: list[Any]) -> tuple[Any, ...]:
        lanes._mark(0, "mark0")
        lanes._wait(1, "mark0")
        lanes._enter(1)
        lanes._used_on([used], 1)
        lanes._mark(1, "mark1")
        lanes._wait(0, "mark1")
        return ("result", *boxed)

    # WHEN called, inside of another one
    outer = object()
    lanes._local.calls.append(outer)  # type: ignore[arg-type]
    assert lanes.on_streams(run)([7]) == ("result", 7)
    # THEN in this order
    assert events.done == [
        ("event 1", "on", "here"),
        ("event 2", "on", "here"),
        ("lane 1", "waits for", "event 1"),
        ("lane 1", "waits for", "event 2"),
        ("enter", "lane 1"),
        ("event 3", "on", "lane 1"),
        ("here", "waits for", "event 3"),
        ("here", "follows", "lane 1"),
    ]
    # AND the allocator is told of what a lane uses, but in a capture; the outer one is on again
    assert [each.args[0].name for each in used.record_stream.call_args_list] == ([] if captures else ["lane 1"])
    assert kept.called
    assert lanes._local.calls.pop() is outer
    assert lanes._local.calls == []


def test_a_graph_s_call_waits_for_the_user_s_streams_and_is_waited_for(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a graph with kernels on streams 1 and 2, an event awaited from before and one recorded
    streams = torch.ops.streams
    graph = torch.fx.Graph()
    x = taking(graph)
    for lane in (0, 2, 1, 2):
        call(graph, aten.sin.default, x, lane=lane)
    call(graph, streams.wait_event.default, 10, 2)
    call(graph, streams.record_event.default, 11, 3)
    around = lanes.Around(graph.nodes)
    assert (around.streams, around.awaited, around.recorded) == ((1, 2, 3), [10], [11])

    def found(numbers: Any) -> list[Any]:
        return [events.stream(f"stream {n}") if n < 10 else events.event(f"event {n}") for n in numbers]

    monkeypatch.setattr(lanes, "_found", found)
    placed: Any = around(lambda boxed: events.done.append(("runs", *boxed)) or ["result"])  # type: ignore[func-returns-value]
    # WHEN called THEN in this order
    assert placed([7]) == ["result"]
    assert events.done == [
        ("here", "follows", "stream 1"),
        ("here", "follows", "stream 2"),
        ("here", "follows", "stream 3"),
        ("here", "waits for", "event 10"),
        ("runs", 7),
        ("stream 1", "follows", "here"),
        ("stream 2", "follows", "here"),
        ("stream 3", "follows", "here"),
        ("event 11", "on", "here"),
    ]
    # AND AOTAutograd knows that the list is its own to empty
    assert placed._boxed_call is True
    assert placed.around is around


def test_the_host_waits_for_the_current_stream_and_an_event_is_recorded_there(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an event by its number WHEN what stands for the host's wait and for its record is called THEN that is done
    monkeypatch.setattr(lanes, "_found", lambda numbers: [events.event(f"event {n}") for n in numbers])
    lanes.host_waits()
    lanes.record_now(7)
    assert events.done == [("here", "is waited for"), ("event 7", "on", "here")]


@pytest.mark.parametrize(
    ("event", "measures"),
    [
        ({"enable_timing": True}, True),
        ({"enable_timing": False}, False),
        ({"enable_timing": None, "raises": None}, False),
        ({"enable_timing": None, "raises": ValueError("must be created with argument 'enable_timing=True'")}, False),
        ({"enable_timing": None, "raises": RuntimeError("Both events must be completed")}, True),
        ({"raises": RuntimeError("Both events must be completed")}, True),
        (None, False),
    ],
)
def test_an_event_measures_time_that_says_so_or_can_be_asked(
    event: dict[str, Any] | None, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an event that tells what it is made for, one that has to be asked, or none
    def found(numbers: list[int]) -> list[Any]:
        assert numbers == [7]
        if event is None:
            raise AssertionError("nobody's any more")
        asked = mock.Mock(side_effect=event.get("raises"))
        tells = {k: v for k, v in event.items() if k != "raises"}
        return [SimpleNamespace(elapsed_time=asked, **tells), None]

    monkeypatch.setattr(lanes, "_found", found)
    # WHEN asked THEN one that could be asked and is not there yet does
    assert lanes._measures_time(7) is measures


def test_a_backward_begins_with_its_first_operation() -> None:
    # GIVEN a joint graph with waits before, between and behind operations, and inputs that are called the backward's
    streams = torch.ops.streams
    graph = torch.fx.Graph()
    x = taking(graph)
    x.meta["partitioner_tag"] = "is_backward"
    waits = [call(graph, streams.wait_event.default, 1, 0)]
    y = call(graph, aten.sin.default, x, tag="is_forward")
    waits.append(call(graph, streams.wait_event.default, 2, 0))
    z = call(graph, aten.mul.Tensor, x, y, tag="must_be_in_backward")
    waits.append(call(graph, streams.wait_event.default, 3, 0))
    w = call(graph, aten.cos.default, z, tag="is_forward")
    waits.append(call(graph, streams.wait_event.default, 4, 0))
    graph.output((y, w))
    # WHEN it is to be cut THEN waits from there on are gone, whatever comes behind
    lanes.before_partitioning(torch.fx.GraphModule(torch.nn.Module(), graph))
    left = [node for node in graph.nodes if node in waits]
    assert left == waits[:2]
    assert [node.meta["partitioner_tag"] for node in left] == ["must_be_in_forward"] * 2


def test_what_a_lane_takes_of_another_one_is_its_own_too_but_constants() -> None:
    # GIVEN a kernel on stream 1 that takes an input and a constant, one of stream 2 that takes its result, and a result
    # of both
    owner: Any = torch.nn.Module()
    owner.weight = torch.nn.Parameter(torch.ones(2))
    graph = torch.fx.Graph(owner)
    x, weight = taking(graph), graph.get_attr("weight")
    weight.meta["val"] = torch.ones(2)
    first = call(graph, aten.add.Tensor, x, weight, lane=1)
    second = call(graph, aten.sin.default, first, lane=2)
    third = call(graph, aten.cos.default, second, lane=2)
    graph.output((first, third))
    # WHEN its lanes are written
    lanes.write_lanes(graph, {second: {first}, third: {second}})
    # THEN each is told of what was made elsewhere, and so is the main one, where the results go
    used = [n.args for n in graph.nodes if n.target is lanes._used_on]
    assert used == [(x, 1), (first, 2), (first, 0), (third, 0)]
    # AND a lane is entered once for kernels in a row
    assert [n.args for n in graph.nodes if n.target is lanes._enter] == [(1,), (2,)]


def test_what_a_lane_takes_of_several_is_its_own_too_if_any_was_made_elsewhere() -> None:
    # GIVEN a kernel of stream 1 that gives two values, of which one lies in its input, and one that takes both there
    graph = torch.fx.Graph()
    x, weight = taking(graph), graph.get_attr("weight")  # of a graph that nobody owns yet
    weight.meta["val"] = torch.ones(2)
    both = call(graph, aten.var_mean.default, x, lane=1)
    both.meta["val"] = [torch.ones(2), x.meta["val"]]
    last = call(graph, aten.add.Tensor, both, weight, lane=1)
    graph.output(last)
    # WHEN its lanes are written THEN the second is told of them
    lanes.write_lanes(graph, {last: {both}})
    used = [n.args for n in graph.nodes if n.target is lanes._used_on]
    assert used == [(x, 1), (both, 1), (last, 0)]
