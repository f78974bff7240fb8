"""The CUDA driver by itself: phantom memory, recording, patching from device and host, recovery."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.capture import pair
from paramgraph_kit.capture.pair import capture_pair, describe
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Launcher, Options
from paramgraph_kit.trace.errors import CaptureError
from paramgraph_kit.trace.model import NodeKind, WordKind

Function = Callable[[list[Any]], list[Any]]
pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def chain(inputs: list[Any]) -> list[Any]:
    """cuBLAS (packed parameters), ATen, a memset, a copy and a concatenation."""
    x, w = inputs
    y = torch.relu(x @ w)
    z = torch.zeros_like(y)
    z[1:].copy_(y[:-1])
    return [torch.cat([y, z]), z]


def reused_block(inputs: list[Any]) -> list[Any]:
    """A temporary of 64 MB is freed and the output takes its first quarter: one address, two allocations."""
    (x,) = inputs
    big = x.repeat(4) * 2
    total = big.sum()
    del big
    out = x + 1  # in the bytes that ``big`` had
    other = x.repeat(4) * 3  # live together with ``out``
    return [out, total + other.sum()]


def reused_block_inputs() -> list[Tensor]:
    return [torch.randn(4 << 20, device="cuda")]


def launched(driver: Any, run: Function, make: Callable[[], list[Tensor]], **options: Any) -> Launcher:
    launcher = Launcher(driver, PartitionCode("test", run), Options(**options))
    launcher(make())
    assert not launcher.reasons, launcher.reasons
    return launcher


def matrices() -> list[Tensor]:
    return [torch.randn(256, 512, device="cuda").half(), torch.randn(512, 128, device="cuda").half()]


@pytest.mark.parametrize("patching", ["device", "host"])
def test_moved_inputs_give_the_bits_of_the_ungraphed_run(driver: Any, patching: str) -> None:
    # GIVEN a captured chain of every lowered kind of node
    launcher = launched(driver, chain, matrices, patching=patching)
    held = []
    for _ in range(5):
        # WHEN it is launched on inputs at new addresses
        inputs = matrices()
        expected = chain(list(inputs))
        got = launcher(list(inputs))
        held.append((got, [t.clone() for t in got], inputs))
        # THEN every bit is that of the ungraphed run
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    # THEN the outputs of earlier launches are still what they were
    assert all(torch.equal(a, b) for got, kept, _ in held for a, b in zip(got, kept, strict=True))
    variant = next(v for v in launcher.variants.values() if v)
    assert variant.patching == patching
    assert variant.state.launches == 5


def test_memset_and_memcpy_become_kernels_and_pointers_are_found(driver: Any) -> None:
    # GIVEN the chain WHEN captured twice
    captured = capture_pair(driver, chain, describe(driver, matrices()), ())
    # THEN nothing but kernels is left, two of them lowered, and each node addresses something
    nodes = captured.recording.nodes
    assert {n.kind for n in nodes} == {NodeKind.KERNEL}
    assert {n.lowered_from for n in nodes} >= {None, NodeKind.MEMCPY}
    assert all(any(w.kind is WordKind.POINTER for w in words) for words in captured.words)
    driver.discard(captured.recording)


def test_a_block_that_is_reused_within_a_capture_is_two_allocations(driver: Any) -> None:
    # GIVEN a function whose output takes the place of a freed temporary WHEN launched at new addresses
    x = reused_block_inputs()
    expected = reused_block(list(x))
    got = launched(driver, reused_block, reused_block_inputs)(list(x))
    # THEN the bits are right
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_without_lifetimes_a_reused_block_is_refused_or_wrong() -> None:
    # GIVEN words resolved by the final state of the pool, as if nothing had been freed
    # WHEN launched, in a process of its own, because a wrong address may end it THEN it is refused or wrong
    script = "from tests.gpu.test_driver_cuda import right_without_lifetimes as f; print('right:', f())"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300)
    complaints = ("illegal memory access", "invalid device pointer")  # which one, the device decides
    assert "right: False" in found.stdout or any(each in found.stderr for each in complaints), found.stderr[-500:]


def right_without_lifetimes() -> bool:
    """Whether the reused block still comes out right from a graph with the launcher's solution switched off."""
    from paramgraph_kit.driver.select import driver as select

    def final_state(allocations: Any, count: int) -> Any:
        last = {a.address: a for a in allocations}
        for a in last.values():
            a.born, a.died = 0, None
        return list(last.values())

    setattr(pair, "merge_ambiguous", final_state)  # noqa: B010 - it is imported there, not exported
    x = reused_block_inputs()
    expected = reused_block(list(x))
    launcher = Launcher(select(), PartitionCode("test", reused_block))
    launcher(reused_block_inputs())
    got = launcher(list(x))
    return not launcher.reasons and all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_random_numbers_go_on_as_without_graphs(driver: Any) -> None:
    # GIVEN a function with dropout, captured
    def run(inputs: list[Any]) -> list[Any]:
        return [torch.nn.functional.dropout(inputs[0], 0.5, True), torch.rand(1000, device="cuda")]

    def make() -> list[Tensor]:
        return [torch.ones(1 << 16, device="cuda")]

    launcher = launched(driver, run, make)
    torch.manual_seed(7)
    expected = [run(make()) for _ in range(3)] + [[torch.rand(5, device="cuda")]]
    # WHEN launched from the same seed THEN every draw is the same, and so is the next eager one
    torch.manual_seed(7)
    got = [launcher(make()) for _ in range(3)] + [[torch.rand(5, device="cuda")]]
    assert all(torch.equal(a, b) for x, y in zip(expected, got, strict=True) for a, b in zip(x, y, strict=True))
    assert next(v for v in launcher.variants.values() if v).state.launches == 3


def test_two_streams_take_turns_on_one_executable(driver: Any) -> None:
    # GIVEN one executable WHEN launched in turn on two streams with other addresses each time
    launcher = launched(driver, chain, matrices)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    work = []
    for i in range(40):
        with torch.cuda.stream(streams[i % 2]):
            inputs = matrices()
            work.append((inputs, launcher(list(inputs))))
    torch.cuda.synchronize()
    # THEN no patch overtook a launch
    assert all(torch.equal(a, b) for x, got in work for a, b in zip(got, chain(list(x)), strict=True))


def test_a_failed_capture_leaves_eager_work_memory_and_random_numbers_alone(driver: Any) -> None:
    # GIVEN a function that draws random numbers and then synchronises
    def run(inputs: list[Any]) -> list[Any]:
        noise = torch.rand(1 << 20, device="cuda")
        return [inputs[0] * (noise + inputs[0].sum().item())]

    torch.rand(1, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    launcher = Launcher(driver, PartitionCode("test", run))
    # WHEN its capture fails
    x = torch.ones(1 << 20, device="cuda")
    launcher([x])
    # THEN the reason is kept, the call and later ones work, and no phantom memory is left in the statistics
    assert [r.code for r in launcher.reasons] == ["capture-failed"]
    assert "not permitted when stream is capturing" in launcher.reasons[0].message
    launcher([x])
    torch.rand(3, device="cuda")
    del x
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + (4 << 20)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.rand(3, device="cuda")
    graph.replay()
    torch.cuda.synchronize()


def test_memory_that_nobody_owns_up_to_is_refused(driver: Any) -> None:
    # GIVEN a function that reads a tensor it was not given
    hidden = torch.randn(1 << 12, device="cuda")
    launcher = Launcher(driver, PartitionCode("test", lambda inputs: [inputs[0] + hidden]))
    # WHEN captured THEN it is refused, and the result is right all the same
    x = torch.ones(1 << 12, device="cuda")
    launcher([x])
    assert [r.code for r in launcher.reasons] == ["unowned-address"]
    assert torch.equal(launcher([x])[0], x + hidden)


def test_somebody_else_s_failed_capture_does_not_abort_ours(driver: Any) -> None:
    # GIVEN a capture of the user's own that failed and was left as torch leaves it
    broken = torch.cuda.CUDAGraph()
    x = torch.ones(1 << 10, device="cuda")
    inputs = matrices()  # now: torch's own generator waits for that capture too, until we have ended it
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError), torch.cuda.graph(broken):
        x.sum().item()
    torch.cuda.set_stream(before)
    # WHEN we capture, with that graph still held
    launcher = launched(driver, chain, lambda: list(inputs))
    # THEN it works, bit for bit, and the process lives
    assert all(torch.equal(a, b) for a, b in zip(launcher(list(inputs)), chain(list(inputs)), strict=True))
    del broken
    assert torch.rand(3, device="cuda").shape == (3,)


def test_a_refused_capture_leaves_no_phantom_memory_mapped(driver: Any) -> None:
    from paramgraph_kit.driver.cuda.phantom import phantom_range

    # GIVEN functions that are refused: while recording, for what they return, and for what they allocate
    def child(inputs: list[Any]) -> list[Any]:
        inner.replay()
        return [inputs[0] + 1]

    def named(inputs: list[Any]) -> Any:
        return {"doubled": inputs[0] * 2}

    def changing(inputs: list[Any]) -> list[Any]:
        calls.append(1)
        x = inputs[0]
        for _ in range(len(calls) % 3):
            x = x + 0
        return [x * 2]

    calls: list[int] = []
    inner = torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        torch.zeros(1, device="cuda")
    ranges = [phantom_range(0, side) for side in (0, 1)]
    for function in (named, child, changing):
        launcher = Launcher(driver, PartitionCode(function.__name__, function))
        launcher([torch.randn(64, device="cuda")])
        # WHEN refused THEN both ranges are as they were, and stay in use
        assert launcher.reasons
        assert [phantom_range(0, side) for side in (0, 1)] == ranges
        assert [each._mapped - each.base for each in ranges] == [0, 0]


def test_an_address_that_an_earlier_capture_was_given_is_no_number(driver: Any) -> None:
    # GIVEN an address that a capture has had, far behind all that the next one will need
    with driver.phantom(0) as phantom:
        phantom.reserve(1 << 30)
        address = phantom.reserve(512)
    x = torch.ones(8, dtype=torch.int64, device="cuda")
    for number, refused in ((address, ["unowned-address"]), (address + (64 << 30), [])):

        def moved(inputs: list[Any], number: int = number) -> list[Any]:
            return [inputs[0] + number]

        launcher = Launcher(driver, PartitionCode("moved", moved))
        # WHEN a kernel is given it in both captures THEN it is refused, and a number that none has had is not
        for _ in range(2):
            assert torch.equal(launcher([x])[0], x + number)
        assert [reason.code for reason in launcher.reasons] == refused


def test_memory_of_other_processes_is_not_counted_as_ours() -> None:
    from paramgraph_kit.driver.cuda.held import held_bytes

    # GIVEN what this process holds WHEN it takes 256 MiB THEN it holds as much more
    before = held_bytes(0)
    block = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    assert held_bytes(0) - before == block.nbytes


def test_memory_that_is_held_for_longer_than_a_capture_keeps_its_range_and_gives_it_back(driver: Any) -> None:
    from paramgraph_kit.driver.cuda.phantom import phantom_range

    # GIVEN a tensor that outlives the capture that it was made in
    held: list[Tensor] = []
    first = phantom_range(0, 0)
    with driver.phantom(0) as phantom:
        driver.discard(driver.record(lambda: held.append(torch.zeros(1 << 20, device="cuda")), phantom, survey=False))
    # WHEN another capture comes THEN it has a range of its own, and works
    assert phantom_range(0, 0) is not first
    inputs = matrices()
    launcher = launched(driver, chain, lambda: list(inputs))
    assert all(torch.equal(a, b) for a, b in zip(launcher(list(inputs)), chain(list(inputs)), strict=True))
    # AND WHEN the tensor dies, torch calls back what is still there, and the range is used again
    held.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert phantom_range(0, 0) is first
    other = launched(driver, reused_block, reused_block_inputs)
    x = reused_block_inputs()
    assert all(torch.equal(a, b) for a, b in zip(other(list(x)), reused_block(list(x)), strict=True))


@pytest.mark.parametrize("patching", ["device", "auto"])
def test_more_addresses_than_the_device_can_patch_are_patched_from_the_host(driver: Any, patching: str) -> None:
    # GIVEN a partition with 4,100 inputs of their own memory, in one launch
    def run(inputs: list[Any]) -> list[Any]:
        return [x + 1 for x in inputs]

    def make() -> list[Tensor]:
        return [torch.full((64,), float(n), device="cuda") for n in range(4100)]

    launcher = Launcher(driver, PartitionCode("test", run), Options(patching=patching, stages=1))
    launcher(make())
    x = make()
    # WHEN launched THEN it is graphed and right; only who insists on the device is told that it cannot
    assert all(torch.equal(a, b) for a, b in zip(launcher(list(x)), run(x), strict=True))
    if patching == "auto":
        assert not launcher.reasons
        assert [v.patching for v in launcher.variants.values() if v] == ["host"]
    else:
        assert "addresses enter one graph, and the device patches at most 4000" in launcher.reasons[0].message


def test_an_executable_that_goes_while_it_runs_leaves_its_rows_to_the_launch(driver: Any) -> None:
    # GIVEN a launch that waits on a stream of its own
    inputs = matrices()
    expected = chain(list(inputs))
    launcher = launched(driver, chain, matrices, patching="device")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)
        got = launcher(list(inputs))
    # WHEN its executable is destroyed and others ask for memory of all small sizes
    for variant in launcher.variants.values():
        if variant is not None:
            for executable in variant.executables:
                executable.destroy()
    junk = [
        torch.full((n,), -1, dtype=torch.int64, device="cuda") for n in (64, 128, 256, 512, 1024) for _ in range(64)
    ]
    torch.cuda.synchronize()
    # THEN what was launched is right
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert len(junk) == 320


def test_whether_kernels_can_read_host_memory_is_what_the_device_says() -> None:
    # GIVEN the device's attributes WHEN the driver is asked THEN it says the same; what a GPU said is in the output
    from cuda.bindings import driver as cu

    from paramgraph_kit.driver.cuda.calls import call
    from paramgraph_kit.driver.select import driver

    device = call(cu.cuDeviceGet, torch.cuda.current_device())
    names = ("PAGEABLE_MEMORY_ACCESS", "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES")
    attributes = {n: getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{n}") for n in names}
    said = {n: call(cu.cuDeviceGetAttribute, attribute, device) for n, attribute in attributes.items()}
    print(said)
    assert driver().reads_host == bool(said["PAGEABLE_MEMORY_ACCESS"])
    # AND memory of the host is told from the device's
    host, here = torch.ones(8), torch.ones(8, device="cuda")
    is_host = driver().host_addresses()
    assert is_host(host.data_ptr())
    assert not is_host(here.data_ptr())
    assert not is_host(torch.ones(8).pin_memory().data_ptr())


def test_library_handles_work_after_a_capture_in_which_they_failed(driver: Any) -> None:
    # GIVEN one operation of each library, some of which fail in a capture, and a read that always does
    square = torch.eye(16, device="cuda") * 2
    operations: dict[str, Callable[[], Any]] = {
        "cuSOLVER eigh": lambda: torch.linalg.eigh(square),
        "cuSOLVER ldl": lambda: torch.linalg.ldl_factor_ex(square),
        "cuBLAS": lambda: square @ square,
        "cuFFT": lambda: torch.fft.fft(square),
        "cuDNN": lambda: torch.nn.functional.conv2d(square[None, None], square[:3, :3].clone()[None, None]),
        "cuSPARSE": lambda: square.to_sparse_csr() @ square,
    }
    for name, operation in operations.items():

        def failing(inputs: list[Any], operation: Callable[[], Any] = operation) -> list[Any]:
            operation()
            return [inputs[0] * inputs[0].sum().item()]

        operation()
        launcher = Launcher(driver, PartitionCode(name, failing))
        # WHEN the capture fails
        launcher([torch.ones(4, device="cuda")])
        assert [r.code for r in launcher.reasons] == ["capture-failed"], name
        # THEN the very next eager call works
        operation()
        torch.cuda.synchronize()


def test_a_solver_works_after_a_capture_by_hand_in_which_it_failed() -> None:
    # GIVEN a capture of the user's in which cuSOLVER fails
    square = torch.eye(16, device="cuda") * 2
    torch.linalg.eigh(square)
    with pytest.raises(CaptureError), pgk.diagnose.capture(torch.cuda.CUDAGraph()):
        torch.linalg.eigh(square)
    # WHEN another of its routines is called THEN it works
    torch.linalg.qr(square)
    torch.cuda.synchronize()


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_launcher_forgotten_during_somebody_elses_capture_leaves_that_alone(driver: Any, mode: str) -> None:
    # GIVEN a launcher in a circle WHEN the collector finds it in a capture of the user's
    launcher = launched(driver, chain, matrices)
    circle: list[Any] = [launcher]
    circle.append(circle)
    x, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = x + 1
        del launcher, circle
        gc.collect()
        y = y * 2
    # THEN that goes on
    graph.replay()
    assert y.tolist() == [4.0] * 8
