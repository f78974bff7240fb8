"""SimDriver: recording on phantom memory, and patched launches that equal eager runs bit for bit."""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.api import Binding, Driver, Executable, Phantom, RawAllocation, Recording
from paramgraph_kit.driver.select import device, driver, twin
from paramgraph_kit.driver.sim.driver import SimDriver
from paramgraph_kit.driver.sim.machine import machine
from paramgraph_kit.trace.errors import DriverCallError, RefusedError, UnsupportedError
from paramgraph_kit.trace.model import NodeKind

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def libraries() -> None:
    """What is recorded here is no first call of a library."""
    a = torch.ones(2, 2, device=device())
    _ = a @ a


def mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """Two layers with dropout, a fill and a copy: every kind of node there is."""
    h = torch.dropout(torch.relu(x @ w1), 0.5, True)
    total = torch.zeros(x.shape[0], w2.shape[1], device=x.device)
    total += h @ w2
    out = torch.empty_like(total)
    out.copy_(total)
    return out


def inputs() -> list[torch.Tensor]:
    return [
        torch.randn(5, 8, device=device()),
        torch.randn(8, 16, device=device()),
        torch.randn(16, 4, device=device()),
    ]


def record(d: Driver, run: Run, tensors: list[torch.Tensor], side: int) -> Recording:
    """A recording whose allocations have the mirrored inputs first."""
    with d.phantom(side) as phantom:
        mirrors = [RawAllocation(phantom.reserve(t.nbytes), t.nbytes, 0) for t in tensors]
        mirrored = [
            d.tensor_at(m.address, m.size, t.shape, t.stride(), 0, t.dtype)
            for m, t in zip(mirrors, tensors, strict=True)
        ]
        recording = d.record(lambda: run(*mirrored), phantom, survey=True)
    recording.allocations[:0] = mirrors
    return recording


def words(parameters: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(parameters) // 8}Q", parameters))


def owner(recording: Recording, address: int, position: int) -> int:
    """The index of the allocation that an address belonged to when the node at ``position`` was recorded."""
    found = [
        i
        for i, a in enumerate(recording.allocations)
        if a.address <= address < a.address + a.size and a.born <= position and (a.died is None or position < a.died)
    ]
    assert len(found) == 1
    return found[0]


def bind(one: Recording, two: Recording) -> list[Binding]:
    """A binding for every word that differs between the sides; each allocation is a slot of its own."""
    found = []
    for i, (a, b) in enumerate(zip(one.nodes, two.nodes, strict=True)):
        for k, (p, q) in enumerate(zip(words(a.parameters), words(b.parameters), strict=True)):
            if p != q:
                slot = owner(one, p, i)
                delta = p - one.allocations[slot].address
                assert owner(two, q, i) == slot
                assert q - two.allocations[slot].address == delta
                found.append(Binding(i, 8 * k, slot, delta))
    return found


def test_the_driver_is_complete() -> None:
    # GIVEN the driver of this machine
    d = driver()
    # THEN it is the simulator's, with every member that the protocol names
    assert isinstance(d, SimDriver)
    names = {n for n in (*vars(Driver), *Driver.__annotations__) if not n.startswith("_")}
    assert [n for n in sorted(names) if not hasattr(d, n)] == []
    assert (d.name, d.device, d) == ("sim", device(), driver())
    assert repr(d) == "SimDriver(8192 MiB)"


def test_two_recordings_differ_in_pointers_only() -> None:
    # GIVEN one function recorded on both sides
    d = driver()
    given = [inputs(), inputs()]
    drawn = d.random_position()
    one, two = (record(d, mlp, tensors, side) for side, tensors in enumerate(given))
    # THEN the nodes are the same, copies and fills are lowered, and nothing was executed
    assert [n.name for n in one.nodes] == [n.name for n in two.nodes]
    assert {n.kind for n in one.nodes} == {NodeKind.KERNEL}
    assert [n.lowered_from for n in one.nodes if n.lowered_from] == [NodeKind.MEMSET, NodeKind.MEMCPY]
    assert [n.position for n in one.nodes] == list(range(len(one.nodes)))
    # THEN sizes and lifetimes agree, addresses do not, and the gaps between allocations differ
    assert [(a.size, a.born, a.died) for a in one.allocations] == [(a.size, a.born, a.died) for a in two.allocations]
    distances = [[b.address - a.address for a, b in pairwise(r.allocations)] for r in (one, two)]
    assert distances[0] != distances[1]
    assert all(a.address % 512 == 0 for r in (one, two) for a in r.allocations)
    assert bind(one, two)
    # THEN the random node reads the generator's state, which lies in real memory at the same address on both sides
    assert (one.random_increment, one.static_ranges) == (two.random_increment, two.static_ranges)
    ((address, size, name),) = one.static_ranges
    assert (size, name) == (16, "generator state")
    assert any(start <= address < start + nbytes for start, nbytes in d.live_segments())
    assert d.random_position() == drawn
    (random,) = [n for n in one.nodes if "dropout" in n.name]
    assert address in words(random.parameters)
    assert address + 8 in words(random.parameters)


def launch(
    d: Driver, recording: Recording, ex: Executable, given: list[torch.Tensor]
) -> tuple[torch.Tensor, list[int]]:
    """Patch to fresh blocks and the given inputs, launch; (a tensor over the result, the blocks)."""
    addresses = [d.address_of(t) for t in given]
    blocks = [d.allocate(a.size, 0) for a in recording.allocations[len(given) :]]
    ex.patch([*addresses, *blocks])
    ex.launch(d.current_stream())
    result = recording.result
    storage, nbytes = d.storage_of(result)
    slot = owner(recording, storage, len(recording.nodes))
    out = d.tensor_at([*addresses, *blocks][slot], nbytes, result.shape, result.stride(), 0, result.dtype)
    return out, blocks


def test_patched_launches_equal_eager_runs_bit_for_bit() -> None:
    # GIVEN an executable made from two recordings
    d = driver()
    one, two = (record(d, mlp, inputs(), side) for side in (0, 1))
    ex = d.instantiate(one, range(len(one.nodes)), bind(one, two), len(one.allocations), patching="auto")
    assert ex.patching == "simulated"
    assert ex.device_bytes == sum(len(n.parameters) for n in one.nodes)
    for seed in range(3):
        # WHEN it is launched at new addresses, from the seed of an eager run
        given = inputs()
        torch.manual_seed(seed)
        eager = [mlp(*given), torch.rand(2, device=device())]
        torch.manual_seed(seed)
        out, blocks = launch(d, one, ex, given)
        # THEN result and generator are the eager run's, bit for bit
        assert torch.equal(out, eager[0])
        assert torch.equal(torch.rand(2, device=device()), eager[1])
        for block in blocks:
            d.free(block)


def test_an_unpatched_launch_touches_phantom_memory() -> None:
    # GIVEN an executable that nobody patched
    d = driver()
    recording = record(d, mlp, inputs(), 0)
    ex = d.instantiate(recording, range(len(recording.nodes)), [], 0, patching="auto")
    # WHEN it is launched THEN the first kernel faults
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        ex.launch(0)
    # WHEN it is discarded and destroyed THEN it holds nothing
    d.discard(recording)
    ex.destroy()
    assert ex.device_bytes == 0
    # WHEN somebody launches it all the same THEN that is an error, and nothing that is gone is read
    with pytest.raises(DriverCallError, match="destroyed"):
        ex.launch(0)


def test_a_freed_address_is_used_again_within_a_capture_unless_switched_off() -> None:
    # GIVEN a temporary that dies before a smaller one is made
    def run(x: torch.Tensor) -> torch.Tensor:
        big = torch.cat([x, x, x, x])
        total = big.sum()
        del big
        return x * total

    x = torch.ones(1024, device=device())

    def made(d: SimDriver) -> list[RawAllocation]:
        return record(d, run, [x], 0).allocations

    # WHEN it is recorded THEN the result lies in the first quarter of the dead one
    _, big, total, out = made(SimDriver())
    assert (big.size, big.born, big.died) == (16384, 0, 2)
    assert out.address == big.address
    assert (out.size, out.born, out.died) == (4096, 2, None)
    assert total.born == 1
    # WHEN reuse is switched off THEN every allocation has an address of its own
    addresses = [a.address for a in made(SimDriver(reuse=False))]
    assert len(set(addresses)) == len(addresses)


def test_bindings_are_checked() -> None:
    # GIVEN a recording WHEN a binding names no word of it THEN it is refused
    d = driver()
    recording = record(d, mlp, inputs(), 0)
    for binding in (Binding(0, 4, 0, 0), Binding(0, 1 << 20, 0, 0), Binding(0, 0, 7, 0)):
        with pytest.raises(ValueError, match="does not name an aligned word"):
            d.instantiate(recording, range(len(recording.nodes)), [binding], 1, patching="auto")
    with pytest.raises(ValueError, match="patching is auto, device or host, not 'magic'"):
        d.instantiate(recording, range(len(recording.nodes)), [], 0, patching="magic")
    with pytest.raises(ValueError, match="has 1 slots, but 2 addresses came"):
        d.instantiate(recording, range(len(recording.nodes)), [], 1, patching="auto").patch([0, 0])


@pytest.mark.parametrize("how", ["item", "user", "unjoined"])
def test_a_failed_recording_leaves_no_trace(how: str) -> None:
    # GIVEN functions that fail in different ways after drawing random numbers
    d = driver()
    cuda = twin()
    side = cuda.Stream()

    def run(x: torch.Tensor) -> Any:
        y = torch.rand(4, device=x.device)
        if how == "item":
            return y.sum().item()
        if how == "user":
            raise ValueError("user bug")
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            return y * 2

    x = torch.ones(4, device=device())
    torch.manual_seed(1)
    state = cuda.get_rng_state()
    gc.collect()
    memory = d.memory()
    before = d.current_stream()
    expected: type[Exception] = ValueError if how == "user" else torch.AcceleratorError
    # WHEN they are recorded THEN their own error comes through
    with pytest.raises(expected) as caught:
        record(d, run, [x], 0)
    assert getattr(caught.value, "error_code", None) == {"item": 900, "user": None, "unjoined": 904}[how]
    del caught
    # THEN stream, generator and pools are as before, and recording works
    assert d.current_stream() == before
    assert torch.equal(cuda.get_rng_state(), state)
    assert d.memory() == memory
    assert not cuda.is_current_stream_capturing()
    torch.rand(2, device=device())
    assert record(d, lambda t: t + 1, [x], 1).nodes


def test_what_cannot_be_patched_is_refused() -> None:
    # GIVEN functions that copy from pinned memory, replay a graph, or are called inside another capture
    d = driver()
    cuda = twin()
    x = torch.ones(4, device=device())
    pinned = torch.ones(4).pin_memory()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        torch.mul(x, 3)

    def launches(t: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return t + 1

    # WHEN they are recorded THEN the reason is the GPU driver's, or the error is torch's own
    with pytest.raises(RefusedError) as caught:
        record(d, lambda t: t.copy_(pinned, non_blocking=True), [x], 0)
    assert caught.value.reason.code == "host-memcpy"
    with pytest.raises(RuntimeError, match=r"^Cannot prepare for replay during capturing stage\."):
        record(d, launches, [x], 0)
    outer = cuda.CUDAGraph()
    with cuda.graph(outer):
        y = x * 3
        with pytest.raises(RefusedError, match="another capture is under way"):
            record(d, mlp, inputs(), 0)
    # THEN the other capture is none the worse
    x.fill_(2)
    outer.replay()
    assert y.tolist() == [6] * 4


def test_recording_takes_its_own_open_phantom() -> None:
    # GIVEN a phantom that is closed WHEN it is recorded on THEN that is refused, and so is a third side
    d = driver()
    with d.phantom(0) as phantom:
        address = phantom.reserve(10, residue=16)
        assert address % 512 == 16
        assert phantom.contains(address)
    closed: Phantom = phantom
    with pytest.raises(UnsupportedError, match="open phantom"):
        d.record(lambda: None, closed, survey=True)
    with pytest.raises(ValueError, match="two capture sides, 0 and 1, not 2"), d.phantom(2):
        pass


def test_backward_is_recorded_on_phantom_memory_too() -> None:
    # GIVEN a forward and backward
    d = driver()

    def run(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        w = w.detach().requires_grad_()
        loss = torch.tanh(x @ w).sum()
        return [loss.detach(), *torch.autograd.grad(loss, [w])]

    x, w = torch.randn(3, 4, device=device()), torch.randn(4, 5, device=device())
    # WHEN it is recorded THEN all its memory is phantom
    with d.phantom(0) as phantom:
        mirrored = [d.tensor_at(phantom.reserve(t.nbytes), t.nbytes, t.shape, t.stride(), 0, t.dtype) for t in (x, w)]
        recording = d.record(lambda: run(*mirrored), phantom, survey=True)
        assert all(phantom.contains(t.data_ptr()) for t in recording.result)
        assert all(phantom.contains(a.address) for a in recording.allocations)
    assert any("tanh_backward" in n.name for n in recording.nodes)


def test_memory_and_views_through_the_driver() -> None:
    # GIVEN a raw block
    d = driver()
    address = d.allocate(1000, 0)
    # THEN tensors over it alias it, and the books count it
    t = d.tensor_at(address, 64, (2, 4), (4, 1), 8, torch.float32)
    t.fill_(3)
    assert d.address_of(t) == address + 32
    assert d.storage_of(t) == (address, 64)
    part = d.reinterpret(t, (2,), (4,), 1)
    assert d.address_of(part) == address + 36
    assert part.tolist() == [3, 3]
    assert machine().allocator.is_live(address + 999)
    allocated = d.memory()[0]
    d.free(address)
    assert allocated - d.memory()[0] == 1024
    assert not machine().allocator.is_live(address)
    assert d.empty_strided((2, 3), (1, 2), torch.int64).stride() == (1, 2)


def test_joining_streams_brings_one_into_the_capture_of_the_other() -> None:
    # GIVEN two streams WHEN work is joined outside a capture THEN nothing forbids it
    d = driver()
    side = twin().Stream()
    d.join_streams(0, side.cuda_stream)
    d.join_streams(side.cuda_stream, 0)
    d.join_streams(0, 0)
    # WHEN a launch is asked for on a capturing stream THEN it is refused with 900
    recording = record(d, lambda t: t + 1, [torch.ones(2, device=device())], 0)
    ex = d.instantiate(recording, range(len(recording.nodes)), [], 0, patching="auto")
    graph = twin().CUDAGraph()
    with pytest.raises(torch.AcceleratorError, match="previous error"), twin().graph(graph):
        ex.launch(d.current_stream())
    twin().recover()
