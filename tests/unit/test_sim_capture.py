"""Capture on the simulated machine: what it records, what it refuses, and the hazards of frozen addresses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.errors import PAGEABLE_COPY
from paramgraph_kit.driver.sim.machine import machine
from paramgraph_kit.trace.model import NodeKind

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
Body = Any


@pytest.fixture
def sim() -> torch.device:
    return device()


@pytest.fixture
def cuda() -> Iterator[Any]:
    device()
    yield twin()
    twin().recover()


def captured(cuda: Any, run: Body, **kwargs: Any) -> tuple[Any, Any]:
    """(graph, result) of capturing ``run``."""
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, **kwargs):
        result = run()
    return graph, result


# hazards


def test_capture_executes_nothing_and_replay_does(sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture that writes in place and makes a new tensor
    x = torch.ones(4, device=sim)
    graph, y = captured(cuda, lambda: x.add_(1) * 10)
    # THEN nothing has happened
    assert x.tolist() == [1] * 4
    # WHEN it is replayed twice THEN it happens twice
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([2] * 4, [20] * 4)
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([3] * 4, [30] * 4)


def test_a_stale_input_gives_the_old_number(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph of x * 2
    x = torch.ones(4, device=sim)
    graph, y = captured(cuda, lambda: x * 2)
    # WHEN the name x gets a new tensor THEN the graph still reads the old one
    old, x = x, torch.full((4,), 7.0, device=sim)
    graph.replay()
    assert y.tolist() == [2] * 4
    # WHEN the old one is filled instead THEN the graph sees it
    old.copy_(x)
    graph.replay()
    assert y.tolist() == [14] * 4


def test_a_freed_input_is_overwritten_by_whoever_gets_its_memory(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph whose input is dropped after capture
    x = [torch.ones(1000, device=sim)]
    graph, y = captured(cuda, lambda: x[0] * 2)
    address = x.pop().data_ptr()
    # WHEN another tensor takes its memory THEN the graph reads that
    other = torch.full((1000,), 21.0, device=sim)
    assert other.data_ptr() == address
    graph.replay()
    assert y[0].item() == 42


def test_an_output_is_overwritten_by_the_next_replay(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph whose output is collected without a copy
    x = torch.zeros(2, device=sim)
    graph, y = captured(cuda, lambda: x + 1)
    kept = []
    # WHEN it is replayed for three inputs THEN all outputs are the last one
    for k in range(3):
        x.fill_(k)
        graph.replay()
        kept.append(y)
    assert [t[0].item() for t in kept] == [3, 3, 3]


def test_numbers_of_the_host_are_baked(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that multiplied by a Python number and by a host tensor
    x = torch.ones(2, device=sim)
    k, t = 3, torch.tensor(5.0)
    graph, (a, b) = captured(cuda, lambda: (x * k, x * t))
    # WHEN both change THEN the graph does not know
    k = 4
    t.fill_(6)
    graph.replay()
    assert (a.tolist(), b.tolist()) == ([3, 3], [5, 5])


def test_random_numbers_differ_per_replay_and_equal_eager_ones(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph with two random operations
    x = torch.ones(64, device=sim)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(4, device=sim), torch.nn.functional.dropout(x, 0.5)

    graph, outputs = captured(cuda, run)
    # WHEN it is replayed twice from a seed THEN it draws what two eager runs draw
    torch.manual_seed(9)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append([t.clone() for t in outputs])
    after = torch.rand(2, device=sim)
    torch.manual_seed(9)
    eager = [run(), run()]
    assert all(torch.equal(a, b) for p, q in zip(replayed, eager, strict=True) for a, b in zip(p, q, strict=True))
    assert not torch.equal(eager[0][0], eager[1][0])
    assert torch.equal(after, torch.rand(2, device=sim))


def test_a_graphs_pool_stays_reserved_as_long_as_the_graph(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph with a temporary of 30 MiB
    gc.collect()
    cuda.empty_cache()
    before = cuda.memory_reserved()
    x = [torch.ones(30 << 18, device=sim)]
    held = cuda.memory_reserved()
    graph, y = captured(cuda, lambda: (x[0] * 2).sum())
    # THEN its memory stays reserved though nothing in it is live but the sum
    cuda.empty_cache()
    assert cuda.memory_reserved() - held == (30 << 20) + (2 << 20)
    pools = {s["segment_pool_id"] for s in cuda.memory_snapshot()}
    assert graph.pool() in pools
    # WHEN graph and output go THEN the cache can be emptied
    x.clear()
    del graph, y
    gc.collect()
    cuda.empty_cache()
    assert cuda.memory_reserved() == before


def test_graphs_that_share_a_pool_overwrite_each_other(sim: torch.device, cuda: Any) -> None:
    # GIVEN two graphs with temporaries in one pool
    x = torch.ones(300, device=sim)
    pool = cuda.graph_pool_handle()
    first, y = captured(cuda, lambda: (x * 3) + 5, pool=pool)
    address = y.data_ptr()
    del y
    second, z = captured(cuda, lambda: x * 100, pool=pool)
    # THEN the second's output lies where the first's temporaries or output were
    assert first.pool() == second.pool() == pool
    used = {int.from_bytes(n.parameters[8 * i : 8 * i + 8], "little") for n in first.nodes() for i in range(3)}
    assert z.data_ptr() in used | {address}
    # WHEN the first is replayed after the second THEN the second's output is gone
    second.replay()
    assert z[0].item() == 100
    first.replay()
    assert z[0].item() != 100


# nodes


def test_nodes_carry_packed_pointers_and_dependencies(sim: torch.device, cuda: Any) -> None:
    # GIVEN a copy, a fill and an addition under capture
    x = torch.ones(2, 3, device=sim)

    def run() -> torch.Tensor:
        y = torch.zeros(2, 3, device=sim)
        z = torch.empty(2, 3, device=sim)
        z.copy_(x)
        return y + z

    graph, out = captured(cuda, run)
    nodes = graph.nodes()
    # THEN they are a memset, a memcpy and a kernel in a chain
    assert [n.kind for n in nodes] == [NodeKind.MEMSET, NodeKind.MEMCPY, NodeKind.KERNEL]
    assert [n.deps for n in nodes] == [(), (0,), (1,)]
    # THEN the words are the operands' addresses, then sizes and strides
    words = memoryview(bytes(nodes[2].parameters)).cast("Q")
    assert words[2] == out.data_ptr()
    assert list(words[3:7]) == [2, 3, 3, 1]
    assert int.from_bytes(nodes[1].parameters[8:16], "little") == x.data_ptr()
    assert all(len(n.parameters) % 8 == 0 for n in nodes)


def test_forked_streams_make_branches(sim: torch.device, cuda: Any) -> None:
    # GIVEN a capture that forks to a second stream and joins
    x = torch.ones(2, device=sim)
    side = cuda.Stream()

    def run() -> torch.Tensor:
        a = x + 1
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            b = a * 2
        c = a * 3
        cuda.current_stream().wait_stream(side)
        return b + c

    graph, out = captured(cuda, run)
    # THEN the two multiplications depend on the addition only, and the sum on both
    assert [n.deps for n in graph.nodes()] == [(), (0,), (0,), (1, 2)]
    graph.replay()
    assert out.tolist() == [10, 10]


def test_patching_a_word_moves_what_is_read_and_written(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph of x * 2 and two other tensors
    x = torch.ones(4, device=sim)
    graph, y = captured(cuda, lambda: x * 2)
    other = torch.full((4,), 8.0, device=sim)
    target = torch.zeros(4, device=sim)
    # WHEN input and output words are rewritten THEN the replay uses the new addresses
    parameters = graph.nodes()[0].parameters
    assert parameters[:8] == x.data_ptr().to_bytes(8, "little")
    parameters[:8] = other.data_ptr().to_bytes(8, "little")
    parameters[8:16] = target.data_ptr().to_bytes(8, "little")
    y.fill_(-1)
    graph.replay()
    assert (target.tolist(), y.tolist()) == ([16] * 4, [-1] * 4)
    # WHEN a word points nowhere THEN the replay is an illegal access
    parameters[:8] = (1 << 45).to_bytes(8, "little")
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        graph.replay()


def test_pinned_memory_is_copied_at_each_replay(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that copies from and to pinned memory without blocking
    source, target = torch.ones(3).pin_memory(), torch.zeros(3).pin_memory()
    x = torch.zeros(3, device=sim)

    def run() -> None:
        x.copy_(source, non_blocking=True)
        target.copy_(x * 2, non_blocking=True)

    graph, _ = captured(cuda, run)
    assert [n.kind for n in graph.nodes()] == [NodeKind.MEMCPY, NodeKind.KERNEL, NodeKind.MEMCPY]
    # WHEN the host's bytes change between replays THEN each replay sees what is there
    for value in (3.0, 4.0):
        source.fill_(value)
        graph.replay()
        assert target.tolist() == [2 * value] * 3
    # WHEN the copy blocks THEN it is a synchronisation
    with pytest.raises(torch.AcceleratorError, match="previous error"):
        captured(cuda, lambda: x.copy_(source))


def test_memory_pools_of_the_user(sim: torch.device, cuda: Any) -> None:
    # GIVEN a pool of one's own
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        x = torch.ones(1000, device=sim)
    y = torch.ones(1000, device=sim)
    # THEN what was made inside lies in its segments and nothing else does
    mine = [s for s in cuda.memory_snapshot() if s["segment_pool_id"] == pool.id]
    assert [s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in mine] == [True]
    assert [s["address"] <= y.data_ptr() < s["address"] + s["total_size"] for s in mine] == [False]


# failures


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


@pytest.mark.parametrize("name", ["cpu", "tolist", "upload", "upload non-blocking", "literal", "list index"])
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_pageable_copy_is_refused_before_it_reaches_cuda(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN a copy between the device and ordinary host memory
    body = broken(name, sim, cuda)
    # WHEN it is captured THEN torch's own error comes through, unmasked
    with pytest.raises(RuntimeError) as caught:
        captured(cuda, body)
    assert str(caught.value) == PAGEABLE_COPY
    assert caught.value.__context__ is None


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
