"""The user's streams in a compiled graph (torch 2.12 and newer): lanes of the regions that are cut from it.

Dynamo notes the stream of each operation by a number. A region on several of them gets code that enters streams of
ours, one for each of the user's, and joins them: its capture forks and joins. What the user waits for is waited for,
and so is what was forgotten: whatever one lane has of another's, to read or to write, is behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest import mock

import torch
import torch.fx

from paramgraph_kit.driver.select import driver, twin
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.partition.nodes import Kind, kind_of, operation_of, storage_keys, tensors_in

MAIN = 0  # the number of the stream on which the graph is called
Run = Callable[[list[Any]], Any]


def normalize(graph: torch.fx.Graph) -> None:
    """Leave waits of streams among themselves; let the host's waits, and events that measure time, stand out."""
    for node in [n for n in graph.nodes if orders_streams(n)]:
        name, numbers = operation_of(node).rpartition(".")[2], node.args[:2]
        with graph.inserting_before(node):
            if name.startswith("synchronize"):
                graph.call_function(host_waits).meta = dict(node.meta)
            elif name == "record_event" and _measures_time(numbers[0]):
                graph.call_function(record_now, (numbers[0],)).meta = dict(node.meta)
            elif name == "sync_dealloc":  # it names a tensor besides, whose memory may be used again
                graph.call_function(torch.ops.streams.wait_event.default, numbers)
            elif not node.all_input_nodes:
                continue
        graph.erase_node(node)


def orders_streams(node: torch.fx.Node) -> bool:
    """Whether an operation is one of ``torch.ops.streams``."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "streams"


def host_waits() -> None:
    """What stands for each of the host's waits: whatever came before has been joined by then."""
    twin().current_stream().synchronize()


def record_now(event: int) -> None:
    """Record an event that measures time where it stands."""
    _found([event])[0].record(twin().current_stream())


def _measures_time(number: Any) -> bool:
    try:
        event = _found([number])[0]
        timed: bool | None = getattr(event, "enable_timing", None)  # the simulated device's tell
        if timed is None:
            event.elapsed_time(event)
        return bool(timed)
    except (AssertionError, ValueError):  # nobody's any more; "must be created with argument 'enable_timing=True'"
        return False
    except RuntimeError:  # it does, and is not there yet
        return True


def before_partitioning(joint: torch.fx.GraphModule) -> None:
    """Let a joint graph be cut into forward and backward.

    The user's own waits are the forward's. In a backward the lanes wait for what they take of one another, no more.
    """
    backward = False
    for node in list(joint.graph.nodes):
        if not orders_streams(node):
            tag = str(node.meta.get("partitioner_tag"))
            backward = backward or (node.op == "call_function" and tag.endswith("backward"))
        elif backward:
            joint.graph.erase_node(node)
        else:
            node.meta["partitioner_tag"] = "must_be_in_forward"


@contextmanager
def without_additions() -> Iterator[None]:
    """Let AOTAutograd leave streams as they were traced.

    It guesses waits in a backward from the time that operations take, and what it wraps them in breaks graphs that
    write to their inputs, and the cut into forward and backward (2.13).
    """
    module = torch_name("graph_capture_module")
    with ExitStack() as stack:
        for name in ("insert_backward_syncs", "sync_deallocations", "wrap_all_sync_nodes_with_control_deps"):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name))
        yield


def lane_of(node: torch.fx.Node) -> int:
    """The number of the stream that an operation is on."""
    return (node.meta.get("custom") or {}).get("stream") or MAIN


def on_lanes(module: torch.fx.GraphModule) -> bool:
    """Whether some operation of a graph, as Dynamo or AOTAutograd has it, is on a stream of the user's."""
    return any(node.op != "placeholder" and lane_of(node) != MAIN for node in module.graph.nodes)


def is_ordered_by_streams(nodes: Iterable[torch.fx.Node]) -> bool:
    """Whether operations must stay where they stand: among waits of the user's, or of the host."""
    return any(
        kind_of(node) is Kind.ORDER
        or node.target in (host_waits, record_now)
        or (node.op == "call_function" and lane_of(node) != MAIN)
        for node in nodes
    )


def write_lanes(graph: torch.fx.Graph, before: Mapping[torch.fx.Node, Set[torch.fx.Node]]) -> None:
    """Let the code of a region enter its lanes; ``before`` has the kernels that each must follow."""
    now = MAIN
    knows: dict[int, dict[int, int]] = {MAIN: {}}  # by lane, the last kernel of each that it is behind
    marks: dict[int, tuple[str, dict[int, int]]] = {}  # the user's events as they were recorded last
    at: dict[torch.fx.Node, tuple[int, dict[int, int]]] = {}  # kernels: the lane, and what that knew behind them
    own_marks: dict[torch.fx.Node, str] = {}
    made: dict[int, int] = {}  # the lanes of storages
    names = (f"mark{n}" for n in count())

    def wait(lane: int, name: str, known: Mapping[int, int], place: torch.fx.Node) -> None:
        with graph.inserting_before(place):
            graph.call_function(_wait, (lane, name))
        mine = knows.setdefault(lane, {})
        mine.update({k: max(mine.get(k, n), n) for k, n in known.items()})

    def mark(lane: int, place: torch.fx.Node) -> tuple[str, dict[int, int]]:
        name = next(names)
        with graph.inserting_before(place):
            graph.call_function(_mark, (lane, name))
        return name, dict(knows.setdefault(lane, {}))

    for number, node in enumerate(list(graph.nodes)):
        kind = kind_of(node) if node.op == "call_function" else None
        if kind is Kind.ORDER:
            match operation_of(node).rpartition(".")[2], *node.args:
                case "record_event", int(event), int(lane):
                    marks[event] = mark(lane, node)
                case "wait_event", int(event), int(lane) if event in marks:
                    wait(lane, *marks[event], node)
                case "wait_stream", int(lane), int(other) if other in knows:
                    wait(lane, *mark(other, node), node)
            graph.erase_node(node)
        if kind is not Kind.KERNEL:
            continue
        lane = lane_of(node)
        mine = knows.setdefault(lane, {})
        for earlier in before.get(node, ()):
            there, known = at[earlier]
            if there not in mine or mine[there] < known[there]:
                if earlier not in own_marks:
                    own_marks[earlier] = next(names)
                    with graph.inserting_after(earlier):
                        graph.call_function(_mark, (there, own_marks[earlier]))
                wait(lane, own_marks[earlier], known, node)
        if lane != now:
            with graph.inserting_before(node):
                graph.call_function(_enter, (lane,))
            now = lane
        mine[lane] = number
        at[node] = lane, dict(mine)
        taken = _taken(node)
        _keep(graph, node, lane, taken, made)
        for key in storage_keys(node) - set().union(*taken.values()):
            made[key] = lane
    end = graph.output_node()
    _keep(graph, end, MAIN, _taken(end), made)


def _taken(node: torch.fx.Node) -> dict[torch.fx.Node, set[int]]:
    return {source: storage_keys(source) for source in node.all_input_nodes if source.op != "get_attr"}


def _keep(
    graph: torch.fx.Graph,
    place: torch.fx.Node,
    lane: int,
    taken: Mapping[torch.fx.Node, Set[int]],
    made: Mapping[int, int],
) -> None:
    """What a lane takes from another one stays until that lane, too, is done with it."""
    for source, keys in taken.items():
        if any(made.get(key, MAIN) != lane for key in keys):
            with graph.inserting_before(place):
                graph.call_function(_used_on, (source, lane))


class _Call:
    """One run of a region: streams of ours for its lanes, forked from where it began."""

    def __init__(self) -> None:
        self.cuda = twin()
        self.here = self.cuda.current_stream()
        self.captures = driver().is_capturing()
        self.began = self.cuda.Event()
        self.began.record(self.here)
        self.streams = {MAIN: self.here}
        self.marks: dict[str, Any] = {}

    def stream(self, lane: int) -> Any:
        """The stream of a lane, which waits for the region's beginning before it does anything."""
        if lane not in self.streams:
            self.streams[lane] = _stream_for(self.cuda, lane)
            self.streams[lane].wait_event(self.began)
        return self.streams[lane]

    def join(self) -> None:
        """Let the stream of the call wait for all others."""
        for lane, stream in self.streams.items():
            if lane != MAIN:
                self.here.wait_stream(stream)


class _Local(threading.local):
    """Streams are a thread's own: while it captures on one, no other thread may put anything there."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.streams: dict[tuple[int, int], Any] = {}


_local = _Local()


def _stream_for(cuda: Any, lane: int) -> Any:
    key = cuda.current_device(), lane
    if key not in _local.streams:
        _local.streams[key] = cuda.Stream()
    return _local.streams[key]


def _enter(lane: int) -> None:
    call = _local.calls[-1]
    call.cuda.set_stream(call.stream(lane))


def _mark(lane: int, name: str) -> None:
    call = _local.calls[-1]
    event = call.marks[name] = call.cuda.Event()
    event.record(call.stream(lane))


def _wait(lane: int, name: str) -> None:
    call = _local.calls[-1]
    call.stream(lane).wait_event(call.marks[name])


def _used_on(value: Any, lane: int) -> None:
    """While a capture plans memory itself, the allocator has nothing to know."""
    call = _local.calls[-1]
    if not call.captures:
        for tensor in tensors_in(value):
            tensor.record_stream(call.stream(lane))


def on_streams(run: Run) -> Run:
    """The code of a region whose code enters lanes."""

    def call(boxed: list[Any]) -> Any:
        mine = _Call()
        _local.calls.append(mine)
        try:
            with driver().stream_kept():
                results = run(boxed)
            mine.join()
        finally:
            _local.calls.pop()
        return results

    return call


class Around:
    """What a graph's call owes the work around it: it is behind what it waits for, and is waited for.

    Streams and events are found by their numbers, in a table that each call of Dynamo's code writes anew.
    """

    def __init__(self, nodes: Iterable[torch.fx.Node]) -> None:
        streams: set[int] = set()
        self.recorded: list[int] = []
        self.awaited: list[int] = []
        for node in nodes:
            if kind_of(node) is Kind.KERNEL:
                streams.add(lane_of(node))
            elif kind_of(node) is Kind.ORDER:
                name, numbers = operation_of(node).rpartition(".")[2], [int(n) for n in node.args if type(n) is int]
                streams.update(numbers[name != "wait_stream" :])
                if name == "record_event":
                    self.recorded.append(numbers[0])
                elif name == "wait_event" and numbers[0] not in self.recorded:
                    self.awaited.append(numbers[0])
        self.streams = tuple(sorted(streams - {MAIN}))

    def __call__(self, run: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
        """``run`` in its place among what the user's streams do."""

        def placed(arguments: list[Any]) -> Sequence[Any]:
            here = twin().current_stream()
            streams, awaited, recorded = map(_found, (self.streams, self.awaited, self.recorded))
            for stream in streams:
                here.wait_stream(stream)
            for event in awaited:
                here.wait_event(event)
            results = run(arguments)
            for stream in streams:
                stream.wait_stream(here)
            for event in recorded:
                event.record(here)
            return results

        placed._boxed_call = True  # type: ignore[attr-defined]  # as ``program`` says it
        placed.around = self  # type: ignore[attr-defined]
        return placed


def _found(numbers: Sequence[int]) -> list[Any]:
    return [torch_name("get_external_object_by_index")(number) for number in dict.fromkeys(numbers)]
