"""What a capture on the simulated device refuses, in CUDA's words, and what a failure leaves behind."""

from __future__ import annotations

import gc
import operator
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from paramgraph_kit.driver.sim.errors import PAGEABLE_COPY
from paramgraph_kit.driver.sim.libraries import forget
from paramgraph_kit.driver.sim.machine import machine
from paramgraph_kit.driver.sim.stream import _table
from tests.unit.test_sim_capture import Body, captured

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


@pytest.fixture(autouse=True)
def _streams_as_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has 32 streams of a priority, and the next ones served before: other tests have taken some."""
    monkeypatch.setattr(_table, "_pools", {})


def broken(name: str, sim: torch.device, cuda: Any) -> Body:
    x = torch.randn(4, 4, device=sim)
    mask = x > 0
    host = torch.randn(4, 4)
    event = cuda.Event()
    event.record()
    side = cuda.Stream()
    values = torch.zeros(int(mask.sum()), device=sim)

    def work_on(stream: Any) -> Any:
        with cuda.stream(stream):
            return x * 2

    cold = cuda.Stream()
    kept = work_on(side)  # a block is cached for this stream
    bodies: dict[str, Body] = {
        "item": lambda: x.sum().item(),
        "bool": lambda: bool(x.sum() > 0),
        "print": lambda: str(x),
        "nonzero": lambda: x.nonzero(),
        "mask index": lambda: x[mask],
        "mask assignment": lambda: x.__setitem__(mask, values),
        "unique": lambda: torch.unique(x),
        "synchronize": lambda: cuda.synchronize(),
        "stream synchronize": lambda: cuda.current_stream().synchronize(),
        "stream query": lambda: cuda.current_stream().query(),
        "event query": lambda: event.query(),
        "cpu": lambda: x.cpu(),
        "tolist": lambda: x.tolist(),
        "upload": lambda: host.to(sim),
        "upload non-blocking": lambda: host.to(sim, non_blocking=True),
        "literal": lambda: torch.tensor([1.0], device=sim),
        "list index": lambda: x[[2, 0, 1]],
        "median of nothing": lambda: x[:0].median(),
        "nanmedian of nothing": lambda: x[:0].nanmedian(),
        "isolation": lambda: (work_on(side), cuda.current_stream().wait_stream(side), kept),
        "memory for a stream outside": lambda: work_on(cold),
        "nested": lambda: captured(cuda, lambda: x + 1),
    }
    return bodies[name]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("item", 900),
        ("bool", 900),
        ("print", 900),
        ("nonzero", 900),
        ("mask index", 900),
        ("mask assignment", 900),
        ("unique", 900),
        ("synchronize", 900),
        ("stream synchronize", 900),
        ("stream query", 900),
        ("event query", 900),
        ("isolation", 905),
        ("memory for a stream outside", 900),
        ("nested", 900),
    ],
)
def test_a_failing_call_invalidates_the_capture_and_is_masked(
    name: str, code: int, sim: torch.device, cuda: Any
) -> None:
    # GIVEN a body that CUDA forbids
    body = broken(name, sim, cuda)
    # WHEN it is captured THEN the end of the capture raises 901 over the real error
    with pytest.raises(torch.AcceleratorError) as caught:
        captured(cuda, body)
    error: Any = caught.value
    assert error.error_code == 901
    assert str(error).startswith("CUDA error: operation failed due to a previous error during capture\nSearch for `")
    causes = []
    while error is not None:
        causes.append(error.error_code)
        error = error.__context__
    assert causes[-1] == code


@pytest.mark.parametrize(
    "name",
    [
        *("cpu", "tolist", "upload", "upload non-blocking", "literal", "list index", "median of nothing"),
        "nanmedian of nothing",
    ],
)
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_pageable_copy_is_refused_before_it_reaches_cuda(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a copy between the device and ordinary host memory
    body = broken(name, sim, cuda)
    # WHEN it is captured THEN torch's own error comes through, unmasked
    with pytest.raises(RuntimeError) as caught:
        captured(cuda, body)
    assert str(caught.value) == PAGEABLE_COPY
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "fails",
    [
        lambda x: x + x[:2],
        lambda x: torch.cat([x, x.view(3, 1)]),
        lambda x: torch.nn.functional.embedding(x, x),
    ],
)
def test_what_fails_in_a_capture_holds_nothing_of_the_users(
    fails: Callable[[torch.Tensor], Any], sim: torch.device, cuda: Any
) -> None:
    # GIVEN a body whose operation is refused for its sizes WHEN that is caught, and nobody collects
    x = torch.ones(3, device=sim)
    captured(cuda, lambda: x * 3)  # what torch imports at the first one holds frames for good
    held = []

    def body() -> Any:
        made = x * 3
        held.append(weakref.ref(made))
        return fails(x)

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(RuntimeError) as caught:
            captured(cuda, body)
        del caught
        # THEN what the body had made is gone
        assert [ref() for ref in held] == [None]
    finally:
        gc.enable()


def test_unjoined_work_is_noticed_at_the_end_only(sim: torch.device, cuda: Any) -> None:
    # GIVEN a fork without a join
    x = torch.ones(2, device=sim)
    side = cuda.Stream()

    def run() -> None:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x * 2

    # WHEN it is captured THEN 904 comes from the end, with no other cause
    with pytest.raises(torch.AcceleratorError, match="capturing stream has unjoined work") as caught:
        captured(cuda, run)
    assert caught.value.error_code == 904  # type: ignore[attr-defined]
    assert caught.value.__context__ is None


def test_two_captures_cannot_be_joined(sim: torch.device, cuda: Any) -> None:
    # GIVEN captures on two streams
    one, two = cuda.Stream(), cuda.Stream()
    graphs = [cuda.CUDAGraph(), cuda.CUDAGraph()]
    with cuda.stream(one):
        graphs[0].capture_begin(capture_error_mode="relaxed")
    with cuda.stream(two):
        graphs[1].capture_begin(capture_error_mode="relaxed")
    # WHEN one waits for the other THEN 902 invalidates both
    with pytest.raises(torch.AcceleratorError, match="merge of separate capture sequences"):
        one.wait_stream(two)
    for stream, graph in zip((one, two), graphs, strict=True):
        with cuda.stream(stream), pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            graph.capture_end()


def test_capture_needs_a_side_stream_and_its_own_thread(sim: torch.device, cuda: Any) -> None:
    # GIVEN the default stream WHEN a capture begins there THEN torch's words refuse it
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        cuda.CUDAGraph().capture_begin()
    # GIVEN a graph that is not captured WHEN it is used THEN that is refused too
    for call, message in (
        ("replay", "Called CUDAGraph::replay without a preceding successful capture"),
        ("pool", r"Called CUDAGraph::pool\(\) without a preceding successful capture"),
        ("capture_end", "CUDA error: the operation cannot be performed in the present state"),
    ):
        with pytest.raises(RuntimeError, match=message):
            getattr(cuda.CUDAGraph(), call)()


def test_a_graph_that_goes_and_could_not_begin_is_told_of(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph whose capture is to begin while another one is under way WHEN it goes
    first, box = cuda.CUDAGraph(), [cuda.CUDAGraph()]
    x = torch.ones(3, device=sim)
    with cuda.stream(cuda.Stream()):
        first.capture_begin()
        with pytest.raises(RuntimeError, match="Cannot register the state during capturing stage") as raised:
            box[0].capture_begin()
        x.mul_(2)
        first.capture_end()
    del raised  # its frames hold the graph
    # THEN a warning says that a GPU's process ends there, and no such thing of the other one
    with pytest.warns(UserWarning, match="on a GPU torch ends the process here"):
        box.clear()
    box.append(first)
    del first
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        box.clear()
    assert not told


def test_a_capture_that_never_began_is_ended(sim: torch.device, cuda: Any) -> None:
    # GIVEN a fresh graph WHEN it is ended on another stream than it was made on THEN torch speaks of streams
    graph, side = cuda.CUDAGraph(), cuda.Stream()
    with cuda.stream(side), pytest.raises(RuntimeError, match="must end on the same stream it began on"):
        graph.capture_end()
    # GIVEN one that was made on the stream on which another captures WHEN it is ended THEN the other's capture ends
    x = torch.ones(2, device=sim)
    with cuda.stream(side):
        graph, other = cuda.CUDAGraph(), cuda.CUDAGraph()
        other.capture_begin()
        x.add_(1)
        with pytest.raises(RuntimeError, match=r"capture_end\(\) called before capture_begin\(\)"):
            graph.capture_end()
        assert not cuda.is_current_stream_capturing()
    # GIVEN one that has ended WHEN it is ended again THEN CUDA finds no capture
    with cuda.stream(side):
        graph.capture_begin()
        x.add_(1)
        graph.capture_end()
        with pytest.raises(RuntimeError, match="cannot be performed in the present state"):
            graph.capture_end()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_memory_in_another_thread_is_forbidden_by_a_global_capture_alone(
    mode: str, sim: torch.device, cuda: Any
) -> None:
    # GIVEN a thread that needs memory that is not cached
    said: list[str] = []

    def work() -> None:
        try:
            torch.empty(1 << 26, device=sim)
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])

    x, graph = torch.ones(2, device=sim), cuda.CUDAGraph()

    def run() -> None:
        with cuda.graph(graph, capture_error_mode=mode):
            x.add_(1)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    # WHEN it runs beside a capture THEN a global one refuses it and is spoiled, the others do not care
    if mode == "global":
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            run()
        assert said == ["CUDA error: operation not permitted when stream is capturing"]
    else:
        run()
        assert said == []


def test_an_exception_of_the_user_comes_through(sim: torch.device, cuda: Any) -> None:
    # GIVEN a body with a bug of its own WHEN it is captured THEN the bug is what is raised
    x = torch.ones(2, device=sim)

    def run() -> None:
        x.add_(1)
        raise ValueError("user bug")

    with pytest.raises(ValueError, match="user bug"):
        captured(cuda, run)


def test_an_optimizer_must_be_capturable(sim: torch.device, cuda: Any) -> None:
    # GIVEN Adam as it comes
    p = nn.Parameter(torch.ones(2, device=sim))
    p.grad = torch.ones(2, device=sim)
    optimizer = torch.optim.Adam([p])
    # WHEN its step is captured THEN torch's health check speaks
    with (
        pytest.raises(RuntimeError, match="CUDA graph capture of step\\(\\) for an instance of Adam but param_groups'"),
        pytest.warns(UserWarning, match="The CUDA Graph is empty"),
    ):
        captured(cuda, optimizer.step)


def test_a_graph_made_on_the_default_stream_cannot_be_walked_in_a_capture(sim: torch.device, cuda: Any) -> None:
    # GIVEN a loss made before the capture
    x = torch.ones(3, device=sim, requires_grad=True)
    loss = (x * x).sum()
    # WHEN its backward is captured THEN the legacy stream would be drawn in
    with pytest.raises(torch.AcceleratorError) as caught:
        captured(cuda, loss.backward)
    context: Any = caught.value.__context__
    assert context.error_code == 906


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("mm", torch.float32, "cublasCreate"),
        ("addmv", torch.float32, "cublasCreate"),
        ("linalg.inv", torch.float32, "cusolverDnCreate"),
        ("fft.fft", torch.complex64, "CUFFT_INTERNAL_ERROR"),
        ("normal", torch.float32, "not permitted when stream is capturing"),
    ],
)
def test_what_writes_into_a_given_tensor_is_refused_as_what_makes_one(
    name: str, kind: torch.dtype, said: str, sim: torch.device, cuda: Any
) -> None:
    # GIVEN an operation that a capture refuses at its first call, or always
    x = torch.eye(4, device=sim)
    of = {"mm": (x, x), "addmv": (x[0], x, x[0]), "normal": (x, x + 1)}.get(name, (x,))
    function: Any = operator.attrgetter(name)(torch)
    chains: list[list[str]] = []

    def first() -> None:  # a thread of its own has no handles
        forget()
        for options in ({}, {"out": torch.empty(0, dtype=kind, device=sim)}):
            with pytest.raises((torch.AcceleratorError, RuntimeError)) as caught:
                captured(cuda, partial(function, *of, **options))
            cuda.recover()
            chains.append([str(caught.value), str(caught.value.__context__)])

    # WHEN it is captured with out= THEN it fails as without
    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    assert chains[0] == chains[1]
    assert said in chains[0][1]


# after a failure


@pytest.mark.parametrize("name", ["item", "isolation", "nested"])
def test_recover_puts_the_process_right(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture that drew random numbers and failed
    body = broken(name, sim, cuda)

    def run() -> None:
        torch.rand(3, device=sim)
        body()

    with pytest.raises(torch.AcceleratorError):
        captured(cuda, run)
    # THEN, as with torch on a GPU, the side stream is still current and random numbers fail
    assert cuda.current_stream() != cuda.default_stream()
    with pytest.raises(RuntimeError, match="Offset increment outside graph capture encountered unexpectedly"):
        torch.rand(3, device=sim)
    # WHEN the process is put right THEN everything works again
    cuda.recover()
    assert cuda.current_stream() == cuda.default_stream()
    x = torch.rand(3, device=sim)
    graph, y = captured(cuda, lambda: x + torch.rand(3, device=sim))
    graph.replay()
    assert bool((y >= x).all())
    assert machine().allocator.captures_underway == 0


def test_a_profiler_that_is_started_spoils_a_capture_without_a_word(sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture in which CUDA's profiler is started: torch hands on the error, and raises nothing
    x, codes = torch.ones(2, device=sim), []

    def body() -> torch.Tensor:
        codes.append(int(cuda.cudart().cudaProfilerStart()))
        return x + 1

    # WHEN it goes on THEN the next operation says that it is spoiled
    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as raised:
        captured(cuda, body)
    assert "previous error during capture" in str(raised.value.__context__)
    assert codes == [900]
    # and around a capture, or in one that forbids no such calls, nothing happens
    cuda.recover()
    assert int(cuda.cudart().cudaProfilerStop()) == 0
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, capture_error_mode="relaxed"):
        body()
    assert codes == [900, 0]


@pytest.mark.parametrize("name", ["bincount", "histc", "svdvals", "matrix_exp"])
def test_a_graph_of_kernels_before_a_copy_is_not_empty(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN operations that copy to the host what their first kernels have found
    x = torch.eye(3, device=sim) + 1
    torch.linalg.svdvals(x), torch.linalg.inv(x)
    whole = torch.tensor([1, 0], device=sim)
    operations: dict[str, Body] = {
        "bincount": lambda: torch.bincount(whole),
        "histc": lambda: torch.histc(x, 4),
        "svdvals": lambda: torch.linalg.svdvals(x),
        "matrix_exp": lambda: torch.linalg.matrix_exp(x),
    }
    # WHEN a capture refuses the copy THEN nothing says that the graph is empty, as on a GPU: a warning is an error here
    with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors"):
        captured(cuda, operations[name])
    cuda.recover()


def test_the_pool_of_a_capture_whose_end_has_failed_stays(sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture that a read has spoiled, after 4 MiB of it in a segment of 20, and a sum in one of 2
    x, graph = torch.ones(1 << 20, device=sim), cuda.CUDAGraph()
    other, _ = captured(cuda, lambda: x.add_(1))  # for whose sake a generator has its numbers on the device already
    gc.collect()
    cuda.empty_cache()  # of what other tests have left
    before = cuda.memory_reserved()
    with pytest.raises(torch.AcceleratorError), cuda.graph(graph):
        (x * 2).sum().item()
    # WHEN its graph goes THEN torch has its memory still, and cannot give it back
    del graph
    cuda.empty_cache()
    assert cuda.memory_reserved() - before == 22 << 20
    # until everything is put right
    cuda.recover()
    cuda.empty_cache()
    assert cuda.memory_reserved() <= before
    del other


def test_a_graph_of_a_mode_that_is_none_has_no_stream(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that was made beside a side stream, and was not captured there as the mode has no such name
    side, graph = cuda.Stream(), cuda.CUDAGraph()
    with cuda.stream(side):
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="loose")
        # WHEN it is ended there THEN that is not the stream of the graph, as an H200 said
        with pytest.raises(RuntimeError, match="Capture must end on the same stream it began on"):
            graph.capture_end()
