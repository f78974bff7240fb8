"""Capture on the simulated machine: what it records, what it refuses, and the hazards of frozen addresses."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from paramgraph_kit.driver.sim.kernels import Kernel
from paramgraph_kit.driver.sim.libraries import forget
from paramgraph_kit.trace.model import NodeKind

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
Body = Any


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


@pytest.mark.parametrize("name", ["linalg_lu_solve", "lu_unpack"])
def test_a_capture_gives_lapack_no_pivot_outside_of_the_matrix(
    sim: torch.device, cuda: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # GIVEN a factored matrix, its strides as a factorisation leaves them, and what CPU kernels are given
    matrix = torch.eye(3) * 2
    factors, pivots = torch.linalg.lu_factor(matrix)
    factors, pivots = factors.mT.to(sim).mT, pivots.to(sim)
    given: list[int] = []
    invoke = Kernel.invoke

    def noting(self: Any, flat: Any, *rest: Any) -> Any:
        given.extend(n for x in flat if isinstance(x, Tensor) and x.dtype == torch.int32 for n in x.tolist())
        return invoke(self, flat, *rest)

    monkeypatch.setattr(Kernel, "invoke", noting)
    operation = getattr(torch.ops.aten, name).default

    def run() -> Any:
        return operation(factors, pivots) if name == "lu_unpack" else operation(factors, pivots, right)

    # WHEN something that takes its pivots is captured
    right = torch.ones(3, 1, device=sim)
    run()  # cuSOLVER's handle is made outside of captures
    given.clear()
    captured(cuda, run)
    # THEN whatever a kernel saw of pivots counts from 1: LAPACK would write before the matrix for a 0
    assert given
    assert set(given) <= {1, 2, 3}


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


def test_the_layout_of_a_result_is_that_of_its_own_arguments(sim: torch.device, cuda: Any) -> None:
    # GIVEN calls of operations that differ in what results depend on: strides, types, sizes, numbers, what is written
    x = torch.arange(6.0, device=sim).view(2, 3)

    def run() -> list[torch.Tensor]:
        made = [x * 2, x.t() * 2, x.long() * 2, x[:1] * 2, x.sum(0), x.sum(1), x.sum(0, True), x.clone().mul_(2)]
        made += [x.double() / 2, torch.arange(3, device=sim), torch.arange(3.0, device=sim), x.argsort(1)]
        torch.set_default_dtype(torch.float64)
        made.append(torch.arange(3.0, device=sim))
        torch.set_default_dtype(torch.float32)
        return made

    eager = run()
    # WHEN they are captured, twice THEN every result lies as it does eagerly, and holds the same
    for _ in range(2):
        graph, outputs = captured(cuda, run)
        graph.replay()
        for made, expected in zip(outputs, eager, strict=True):
            assert (made.dtype, made.shape, made.stride()) == (expected.dtype, expected.shape, expected.stride())
            assert torch.equal(made, expected)


def test_a_graph_is_replayed_on_its_own_device(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that draws WHEN the user has made a device the default, this one, too THEN it is replayed as ever
    graph, order = captured(cuda, lambda: torch.randperm(5, device=sim).sort()[0])
    for default in ("meta", sim):
        with torch.device(default):
            order.zero_()
            graph.replay()
        assert order.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_nothing_is_launched_for_no_numbers(sim: torch.device, cuda: Any) -> None:
    # GIVEN operations that make or change no numbers WHEN captured THEN the graph is empty, but for a sum of none
    x = torch.ones(3, device=sim)
    for make, nodes in (
        (lambda: x[:0] * 2, 0),
        (lambda: x[:0].add_(1), 0),
        (lambda: x[:0].sum(), 1),
        (lambda: torch._assert_async(x.sum() > 0), 3),
    ):
        assert len(captured(cuda, make)[0].nodes()) == nodes


def test_memory_that_was_given_back_is_not_what_comes_next(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph that reads memory which is freed, and given back WHEN other memory is asked for
    given = [torch.full((4 << 20,), 2.0, device=sim)]
    graph, _ = captured(cuda, lambda: given[0] * 2)
    address = given.pop().data_ptr()
    cuda.empty_cache()
    other = torch.ones(4 << 20, device=sim)
    # THEN that is elsewhere, and the graph finds none, as on a GPU
    assert other.data_ptr() != address
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        graph.replay()


def test_a_graphs_pool_stays_reserved_as_long_as_the_graph(sim: torch.device, cuda: Any) -> None:
    # GIVEN a graph with a temporary of 30 MiB, and an older one, so that the generator has memory for graphs
    gc.collect()
    cuda.empty_cache()
    _older, _ = captured(cuda, lambda: torch.ones(2, device=sim))
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


def test_a_generator_keeps_memory_for_graphs_as_long_as_there_are_any(sim: torch.device, cuda: Any) -> None:
    # GIVEN no graphs
    forget()
    x = torch.zeros(2, device=sim)
    before = cuda.memory_allocated()
    # WHEN there are two, one after the other THEN the first brings a seed and an offset, of a block each
    graphs = [cuda.CUDAGraph(), cuda.CUDAGraph()]
    held = []
    for graph in graphs:
        with cuda.graph(graph):
            x.add_(1)
        held.append(cuda.memory_allocated() - before)
    assert held == [1024, 1024]
    # AND they go with the last
    graphs.pop(0)
    del graph
    assert cuda.memory_allocated() - before == 1024
    graphs.clear()
    assert cuda.memory_allocated() == before


@pytest.mark.parametrize(("n", "steps"), [(0, 0), (1, 8), (5, 12), (8, 12)])
def test_randperm_moves_a_generator_by_what_it_permutes(n: int, steps: int, sim: torch.device, cuda: Any) -> None:
    # GIVEN where the generator is WHEN so many are permuted THEN it has moved as on an H200
    generator = cuda.default_generators[0]
    before = generator.get_offset()
    torch.randperm(n, device=sim)
    assert generator.get_offset() - before == steps
