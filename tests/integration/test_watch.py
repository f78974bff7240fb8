"""watch: what a trace gets while a block runs, and that nothing of it stays behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend import watch as watching
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.trace import ParamgraphError, PoolAction, Trace

DEVICE = pgk.device()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counts nodes and events of the simulator")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    yield
    assert nothing_left()


def nothing_left() -> bool:
    """No watch is active, no observer registered, and no executable reports to anybody."""
    states = [v.state for g in compiled_graphs() for x in g.launchers for v in x.variants.values() if v is not None]
    return not watching._active and not launching.observers and all(state.watch is None for state in states)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.a(x))


def model(**options: Any) -> Any:
    return pgk.compile(Model().to(DEVICE), **options)


def inputs() -> Tensor:
    return torch.randn(4, 8).to(DEVICE)


def test_a_capture_and_its_launches_are_recorded() -> None:
    # GIVEN a model that has never run
    fast = model()
    # WHEN it is called three times at new addresses, and twice at the same ones
    with pgk.watch("five") as trace, torch.no_grad():
        kept = [fast(inputs()) for _ in range(3)]
        x = inputs()
        first = fast(x)
        del first
        fast(x)
    # THEN the first call captured, and each other one is a launch
    assert trace.title == "five"
    assert len(kept) == 3
    (partition,), (capture,) = trace.partitions, trace.captures
    assert (partition.graphed, partition.kernels) == (True, 2)
    assert [launch.call for launch in trace.launches] == [0, 1, 2, 3]
    assert {launch.capture for launch in trace.launches} == {capture.id}
    assert trace.launches[0].moved == 5  # weight, bias, input, output and workspace: nothing was bound before
    assert trace.launches[1].moved >= 2  # the input and the output, which is kept
    assert all(launch.words_patched == capture.words_patched for launch in trace.launches[:3])
    # and where nothing moved nothing was patched
    assert (trace.launches[3].moved, trace.launches[3].words_patched) == (0, 0)
    assert sum(launch.bytes_copied for launch in trace.launches) == 0


def test_what_was_captured_before_is_in_the_trace_once_it_is_launched() -> None:
    # GIVEN two models that have run
    used, unused = model(), pgk.compile(lambda x: x * 2)
    with torch.no_grad():
        used(inputs())
        unused(inputs())
        # WHEN one of them runs
        with pgk.watch() as trace:
            used(inputs())
    # THEN only that one is there
    assert [len(trace.partitions), len(trace.captures), len(trace.launches)] == [1, 1, 1]
    assert trace.captures[0].partition == trace.partitions[0].id
    assert len(trace.captures[0].nodes) == 2


def test_training_is_recorded_from_both_threads() -> None:
    # GIVEN
    fast = model()
    # WHEN backwards run, on autograd's own thread
    with pgk.watch() as trace:
        for _ in range(3):
            fast(inputs()).sum().backward()
    # THEN forward and backward have captures and launches, and gradients that are added up have a row
    assert sorted(p.graph.split()[0] for p in trace.partitions) == ["backward", "eager", "forward"]
    counts = [sum(launch.capture == capture.id for launch in trace.launches) for capture in trace.captures]
    assert counts == [2, 2]


def test_nested_watches_see_their_own_part() -> None:
    # GIVEN
    fast = model()
    with torch.no_grad(), pgk.watch("outer") as outer:
        fast(inputs())
        fast(inputs())
        # WHEN
        with pgk.watch("inner") as inner:
            fast(inputs())
        fast(inputs())
    # THEN
    assert [len(outer.captures), len(outer.launches)] == [1, 3]
    assert [len(inner.captures), len(inner.launches)] == [1, 1]
    assert inner.launches[0].call == 0


def test_watches_that_do_not_nest_leave_nothing_behind() -> None:
    # GIVEN two watches, the first of which ends first
    fast = model()
    first, second = pgk.watch("first"), pgk.watch("second")
    with torch.no_grad():
        traces = [first.__enter__(), second.__enter__()]
        fast(inputs())
        fast(inputs())
        # WHEN
        first.__exit__(None, None, None)
        fast(inputs())
        second.__exit__(None, None, None)
        fast(inputs())
    # THEN each has what happened while it was open
    assert [len(trace.launches) for trace in traces] == [1, 2]


def test_an_exception_is_explained_and_goes_on() -> None:
    # GIVEN a block that breaks a capture
    found: Trace | None = None
    x = inputs()
    # WHEN
    try:
        with pgk.watch() as trace:
            found = trace
            with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
                x.sum().item()
    except RuntimeError as error:
        raised = str(error)
    else:
        raised = ""
    finally:
        pgk.cuda.set_stream(pgk.cuda.default_stream())
    # THEN the error arrives as it is, and the trace has the diagnosis, at this file's line
    assert "CUDA error" in raised
    assert found is not None
    (failure,) = found.failures
    assert failure.code == "sync-item"
    assert failure.frame is not None
    assert failure.frame.text == "x.sum().item()"


def test_a_capture_that_fails_in_the_block_is_there_at_once_and_once() -> None:
    # GIVEN a capture that asks for a value
    x = torch.ones(4, device=DEVICE)

    def capture() -> None:
        with pgk.diagnose.capture(pgk.cuda.CUDAGraph()):
            x.sum().item()

    # WHEN the block goes on after it THEN the trace has it already
    with pgk.watch() as trace:
        with pytest.raises(ParamgraphError):
            capture()
        assert [failure.code for failure in trace.failures] == ["sync-item"]
    # AND where its exception leaves the block it is not there twice
    with pytest.raises(ParamgraphError), pgk.watch() as other:
        capture()
    assert other.failures == trace.failures


def test_an_ungraphed_partition_is_there_with_its_reason() -> None:
    # GIVEN WHEN
    fast = model(select="never")
    with pgk.watch() as trace, torch.no_grad():
        fast(inputs())
    # THEN
    (partition,) = trace.partitions
    assert not partition.graphed
    assert [reason.code for reason in partition.reasons] == ["not-selected"]
    assert trace.launches == []


def test_partitions_are_up_to_date_while_the_block_runs() -> None:
    # GIVEN a model, and a function that reads memory which nobody is told of
    fast, table = model(), torch.ones(8, device=DEVICE)

    @torch.library.custom_op("watched::hidden", mutates_args=())
    def hidden(x: Tensor) -> Tensor:
        return x + table

    hidden.register_fake(torch.empty_like)
    refused = pgk.compile(lambda x: hidden(x).cpu())
    with pgk.watch() as trace, torch.no_grad():
        # WHEN each has been called THEN what is known is there before the block ends
        fast(inputs())
        fast(inputs())
        assert [partition.graphed for partition in trace.partitions] == [True]
        refused(inputs())
    # AND what no partition is left of is there at the end: the copy to the CPU, and the operation that is refused
    assert [partition.graphed for partition in trace.partitions] == [True, False, False]
    reasons = [reason.code for partition in trace.partitions[1:] for reason in partition.reasons]
    assert reasons == ["device-copy", "unowned-address"]


def test_pool_events_begin_with_what_is_there_and_add_up() -> None:
    # GIVEN memory that is held already
    held = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)
    # WHEN more is allocated and freed in the block
    with pgk.watch() as trace:
        more = torch.empty(3 << 20, dtype=torch.uint8, device=DEVICE)
        del more
        live, reserved = pgk.cuda.memory_allocated(), pgk.cuda.memory_reserved()

    # THEN the events add up to what the allocator says
    def total(up: PoolAction, down: PoolAction) -> int:
        return sum(e.size * ((e.action is up) - (e.action is down)) for e in trace.pool_events)

    assert total(PoolAction.ALLOC, PoolAction.FREE) == live >= held.nbytes
    assert total(PoolAction.SEGMENT_ALLOC, PoolAction.SEGMENT_FREE) == reserved
    assert any((e.action, e.size) == (PoolAction.FREE, 3 << 20) for e in trace.pool_events)
    # what was there is one reading, of one time, and every event after it has its own
    times = [e.time for e in trace.pool_events]
    there = times.count(0)
    assert there >= 2
    assert times == [0] * there + list(range(there, len(times)))


def test_a_recorded_trace_survives_a_file_and_is_shown(tmp_path: Path) -> None:
    # GIVEN
    fast = model()
    with pgk.watch("kept") as trace, torch.no_grad():
        fast(inputs())
        fast(inputs())
    # WHEN
    loaded = pgk.load(pgk.save(trace, tmp_path / "kept.pgtrace"))
    # THEN
    assert loaded.captures == trace.captures
    assert loaded.launches == trace.launches
    assert loaded.partitions == trace.partitions
    text = pgk.explore(loaded).text()
    assert "capture 0: 2 nodes, 1 edge" in text
    assert "(loaded from a recording)" in text


def test_each_node_of_a_compiled_graph_names_the_users_line() -> None:
    # GIVEN a function in which each line launches one kernel
    def lines(x: Tensor) -> Tensor:
        y = x * 2
        z = torch.relu(y)
        return z.sum()

    fast = pgk.compile(lines)
    x = inputs().requires_grad_()
    # WHEN it is captured, forward and backward
    with pgk.watch() as trace:
        for _ in range(2):
            fast(x).backward()
    # THEN each node of the forward has its line, and those of the backward the line that they are the gradient of
    forward, backward = [[node.frame for node in capture.nodes] for capture in trace.captures]
    assert [frame.text for frame in forward if frame] == ["y = x * 2", "z = torch.relu(y)", "return z.sum()"]
    assert len(forward) == 3
    assert {frame.text for frame in backward if frame} <= {"y = x * 2", "z = torch.relu(y)", "return z.sum()"}
    assert any(backward)
    assert all(frame.file == __file__ and frame.function == "lines" for frame in forward if frame)


def broken(x: Tensor) -> Tensor:
    return x * x.sum().item()


def mine(x: Tensor) -> None:
    raise ValueError("mine")


def test_failed_captures_are_kept_whether_they_are_caught_or_not() -> None:
    # GIVEN a capture that fails, and somebody who catches that
    x = inputs()
    with pgk.watch("caught") as trace:
        try:
            with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
                broken(x)
        except RuntimeError:
            pgk.diagnose.repair()
        # WHEN looked at THEN it is there already
        assert [failure.code for failure in trace.failures] == ["sync-item"]
    # AND once where nobody catches it, or where it is diagnosed too
    with pytest.raises(RuntimeError), pgk.watch("uncaught") as trace, pgk.cuda.graph(pgk.cuda.CUDAGraph()):
        broken(x)
    pgk.diagnose.repair()
    assert [failure.code for failure in trace.failures] == ["sync-item"]
    with pgk.watch("diagnosed") as trace:
        pgk.diagnose(broken, x)
        pgk.diagnose(broken, x)
    assert [failure.code for failure in trace.failures] == ["sync-item"]
    # AND an exception that is no failure of a capture is not
    with pytest.raises(ValueError, match="mine"), pgk.watch("user") as trace, pgk.cuda.graph(pgk.cuda.CUDAGraph()):
        mine(x * 2)
    pgk.diagnose.repair()
    assert [failure.code for failure in trace.failures] == ["unknown"]


@pytest.mark.parametrize("kept", [True, False], ids=["whose nodes are kept", "whose nodes are gone"])
def test_a_replay_of_an_older_graph_is_a_launch(kept: bool) -> None:
    # GIVEN a graph that was captured before anybody watched
    x, graph = inputs(), pgk.cuda.CUDAGraph(keep_graph=kept)
    with pgk.cuda.graph(graph):
        x * 2 + 1
    # WHEN replayed while somebody watches THEN it is in the trace, as far as it can be read
    with pgk.watch("later") as trace:
        graph.replay()
        graph.replay()
    assert [len(capture.nodes) for capture in trace.captures] == ([2] if kept else [])
    assert [launch.call for launch in trace.launches] == ([0, 1] if kept else [])
    assert len(trace.partitions) == kept


def test_graphs_by_hand_and_their_replays_are_kept() -> None:
    # GIVEN a graph that was captured while nobody watched
    x, y, old, new = inputs(), inputs(), pgk.cuda.CUDAGraph(), pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(old):
        before = x * 2
    # WHEN one is captured in a block, and both are replayed
    with pgk.watch("by hand") as trace:
        with pgk.cuda.graph(new):
            after = y + 1
        for _ in range(3):
            new.replay()
        old.replay()
    # THEN the new one is there with its nodes and replays; the other one says nothing
    assert [p.graph for p in trace.partitions] == ["captured by hand 1"]
    assert [node.name for node in trace.captures[0].nodes] == ["add.Tensor"]
    assert [(launch.capture, launch.call, launch.moved) for launch in trace.launches] == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, 0),
    ]
    assert torch.equal(before, x * 2)
    assert torch.equal(after, y + 1)
    # and nothing stays of the watching
    assert "told" not in vars(pgk.cuda.graph)["__exit__"].__qualname__


def test_graphs_that_are_begun_and_ended_by_hand_are_kept_too() -> None:
    # GIVEN a capture without torch.cuda.graph, and one that fails so
    x, graph, failing = inputs(), pgk.cuda.CUDAGraph(), pgk.cuda.CUDAGraph()
    with pgk.watch("by hand") as trace:
        with pgk.cuda.stream(pgk.cuda.Stream()):
            graph.capture_begin()
            y = x * 2 + 1
            graph.capture_end()
        # WHEN it is replayed
        graph.replay()
        graph.replay()
    # THEN it is there once, with its nodes and replays
    assert [p.graph for p in trace.partitions] == ["captured by hand 1"]
    assert [len(capture.nodes) for capture in trace.captures] == [2]
    assert [launch.call for launch in trace.launches] == [0, 1]
    assert torch.equal(y, x * 2 + 1)
    with pgk.watch("failing") as trace:
        try:
            with pgk.cuda.stream(pgk.cuda.Stream()):
                failing.capture_begin()
                try:
                    broken(x)
                finally:
                    failing.capture_end()
        except RuntimeError:
            pgk.diagnose.repair()
    assert [failure.code for failure in trace.failures] == ["sync-item"]
    assert not trace.partitions
    assert "told" not in vars(pgk.cuda.CUDAGraph)["capture_end"].__qualname__
    # AND what a driver of ours captures, as that of a GPU does for each graph that is launched, is none of the user's
    ours: dict[str, Any] = {"__name__": "paramgraph_kit.driver.cuda.record"}
    exec("def record(graph, run):\n    graph.capture_begin()\n    run()\n    graph.capture_end()", ours)
    with pgk.watch("ours") as trace, pgk.cuda.stream(pgk.cuda.Stream()):
        ours["record"](pgk.cuda.CUDAGraph(), lambda: x * 2)
    assert not trace.partitions


def test_what_the_doctor_tries_is_none_of_the_users_own_graphs() -> None:
    # GIVEN a function with a problem, and its own graph
    x, graph = inputs(), pgk.cuda.CUDAGraph()
    with pgk.watch("diagnosed") as trace:
        with pgk.cuda.graph(graph):
            x * 2
        # WHEN it is diagnosed and rewritten, which captures and launches what is tried
        found = pgk.diagnose(broken, x, fix=True)
        graph.replay()
    # THEN the problem is kept, and of graphs only the user's
    assert found.fix is not None
    assert found.fix.complete
    assert [failure.code for failure in trace.failures] == ["sync-item"]
    assert [p.graph for p in trace.partitions] == ["captured by hand 1"]
    assert len(trace.launches) == 1


def test_five_watched_steps_fill_five_columns() -> None:
    # GIVEN the steps of a fix, each in a block of its own
    x, steps = inputs(), {}
    with pgk.watch("broken") as steps["broken"]:
        try:
            with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
                broken(x)
        except RuntimeError:
            pgk.diagnose.repair()
    with pgk.watch("diagnosed") as steps["diagnosed"]:
        pgk.diagnose(broken, x)
    with pgk.watch("captured") as steps["captured"]:
        graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(graph):
            y = x * x.sum()
        graph.replay()
    with pgk.watch("frozen") as steps["frozen"]:
        steps["frozen"].compare("a call on a new tensor", y, inputs() * 2)
    with pgk.watch("parameterized") as steps["parameterized"], torch.no_grad():
        fast = pgk.parameterize(lambda x: x * x.sum())
        for _ in range(3):
            fast(inputs())
    # WHEN they are explored THEN each column says what happened in it
    from paramgraph_kit.explore.steps import comparison

    table = {fact.name: dict(zip(steps, fact.values, strict=True)) for fact in comparison(steps).facts}
    assert table["failures"]["broken"].startswith("1: A value was read back")
    assert table["failures"]["diagnosed"].startswith("1: A value was read back")
    assert table["graph nodes"]["captured"] == "2"
    assert table["launches"]["captured"] == "1"
    assert "differ" in table["numbers: a call on a new tensor"]["frozen"]
    assert table["launches"]["parameterized"] == "2"
    # and the pool of the graph that is still there is not laid at the door of a later step
    assert table["private pools, peak"]["captured"].endswith("in 1 pool")
    assert table["private pools, peak"]["frozen"] == "0 B"


def test_launches_are_timed_where_the_device_has_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a device with a clock that moves on by 5 us at each look
    clock = iter(range(0, 1000, 5))
    target = driver()
    monkeypatch.setattr(target, "mark", lambda: next(clock), raising=False)
    monkeypatch.setattr(target, "elapsed_us", lambda first, last: float(last - first), raising=False)
    monkeypatch.setattr(watching, "MOST_TIMED", 3)
    fast = model()
    # WHEN more launches are watched than are timed
    with pgk.watch() as trace, torch.no_grad():
        for _ in range(5):
            fast(inputs())
        during = {launch.gpu_us for launch in trace.launches}
    # THEN nothing is read before the end, and then each of the first ones has its start and its length
    assert during == {None}
    assert [launch.gpu_us for launch in trace.launches] == [5.0, 5.0, 5.0, None]
    assert [launch.gpu_start_us for launch in trace.launches] == [0.0, 10.0, 20.0, None]


def test_what_is_simulated_has_no_times() -> None:
    # GIVEN a model WHEN it is watched on the simulated device THEN no launch claims to have taken time
    fast = model()
    with pgk.watch() as trace, torch.no_grad():
        for _ in range(3):
            fast(inputs())
    assert {(launch.start_us, launch.gpu_start_us, launch.gpu_us) for launch in trace.launches} == {(None, None, None)}


def test_each_block_names_the_line_that_asked_for_it() -> None:
    # GIVEN a model WHEN a tensor is made and the model launched while somebody watches
    fast = model()
    with torch.no_grad():
        fast(inputs())
        fast(inputs())
        with pgk.watch() as trace:
            mine = torch.empty(700, device=DEVICE)
            made = fast(inputs())
    # THEN what came has its line, of the model where its code asked, and what went has none
    address = driver().address_of
    lines = {event.address: event.frame for event in trace.pool_events if event.frame is not None}
    assert {frame.file for frame in lines.values()} == {__file__}
    functions = [lines[address(tensor)].function for tensor in (mine, made)]
    assert functions == ["test_each_block_names_the_line_that_asked_for_it", "forward"]
    assert all(event.frame is None for event in trace.pool_events if event.action is PoolAction.FREE)
