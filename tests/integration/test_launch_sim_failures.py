from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.sim import cuda_twin
from paramgraph_kit.driver.sim.driver import SimDriver
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Launcher
from tests.integration.launch_bench import (
    DEVICE,
    DRIVER,
    assert_same,
    codes,
    host,
    launcher_of,
    launches,
    moved,
    variants,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

MIB = 1 << 20


def hungry(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two temporaries of 24 MiB, an output of 2 MiB, and one of the input's size."""
    big = x.repeat(12) + 1
    return big[: x.numel()] * 2, x.sin()[:8]


def everything_but(nbytes: int) -> list[Tensor]:
    """Fill the device until less than ``nbytes`` more can be had in one piece."""
    taken = []
    size = 4 << 30
    while size >= nbytes // 2:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def test_out_of_memory_in_a_launch_reaches_the_user_and_leaves_nothing_behind() -> None:
    # GIVEN a launcher, and a device without room for its workspace
    launcher = launcher_of(hungry)
    launcher([moved(MIB // 2)])
    (variant,) = variants(launcher)
    assert variant.plan.workspace_bytes > 20 * MIB
    x = moved(MIB // 2, seed=1)
    cuda_twin.empty_cache()
    hog = everything_but(20 * MIB)
    gc.collect()
    before = DRIVER.memory()[0]
    # WHEN it is launched
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        launcher([x])
    # THEN the user has torch's own error, and what had been allocated for outputs is free again
    del caught
    gc.collect()
    assert DRIVER.memory()[0] == before
    # WHEN there is room again THEN the next call is launched and right
    hog.clear()
    assert_same(launcher([x]), hungry(x))
    assert launches(launcher) == 1
    assert launcher.reasons == []


def test_a_patch_that_fails_half_way_is_done_again_at_the_next_launch() -> None:
    # GIVEN an executable whose patch fails once, after some words
    class Failing(SimDriver):
        def instantiate(self, *args: Any, **how: Any) -> Any:
            made = super().instantiate(*args, **how)
            patch, calls = made.patch, iter((False, True))

            def failing(addresses: Any) -> None:
                if next(calls, False):
                    raise RuntimeError("no patch today")
                patch(addresses)

            made.patch = failing
            return made

    launcher = launcher_of(hungry, driver=Failing())
    x = moved(4096)
    launcher([x])
    launcher([x])
    y = moved(4096, seed=1)
    gc.collect()
    before = DRIVER.memory()[0]
    # WHEN it fails THEN the workspace is free again
    with pytest.raises(RuntimeError, match="no patch today") as caught:
        launcher([y])
    del caught
    gc.collect()
    assert DRIVER.memory()[0] == before
    # AND the next call patches everything
    assert_same(launcher([y]), hungry(y))
    assert launches(launcher) == 2


def test_a_capture_that_fails_runs_ungraphed_with_the_reason_and_eager_work_goes_on() -> None:
    # GIVEN a function that draws random numbers and then makes the host wait, which no capture allows
    def waits(x: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.rand_like(x)
        return x * x.sum().item(), noise

    launcher = launcher_of(waits)
    stream = cuda_twin.current_stream()
    for call in range(3):
        x = moved(8, seed=call)
        torch.manual_seed(call)
        expected = waits(x)
        torch.manual_seed(call)
        # WHEN it is called THEN numbers are right all the same
        assert_same(launcher([x]), expected)
    # AND the reason is CUDA's own, once, in one line
    (reason,) = launcher.reasons
    assert reason.code == "capture-failed"
    assert reason.message == "CUDA error: operation not permitted when stream is capturing"
    # AND stream, generator and allocator are as before: later work and other captures are unharmed
    assert cuda_twin.current_stream() == stream
    assert not cuda_twin.is_current_stream_capturing()
    torch.rand(4, device=DEVICE)
    other = launcher_of(hungry)
    other([moved(8)])
    assert_same(other([x]), hungry(x))
    assert launches(other) == 1


def test_an_exception_of_the_user_s_own_is_the_user_s_and_the_next_call_captures() -> None:
    # GIVEN a function that raises at its first call
    calls = []

    def moody(x: Tensor) -> tuple[Tensor]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not yet")
        return (x + 1,)

    launcher = launcher_of(moody)
    # WHEN it raises THEN the exception is the user's own, and no reason is made of it
    with pytest.raises(ValueError, match="not yet"):
        launcher([moved(4)])
    assert (launcher.reasons, launcher.variants) == ([], {})
    # AND later calls capture and launch
    x = moved(4)
    for _ in range(2):
        assert_same(launcher([x]), (x + 1,))
    assert launches(launcher) == 1


def test_a_graph_that_cannot_be_instantiated_is_given_back() -> None:
    # GIVEN a driver that cannot instantiate
    class Broken(SimDriver):
        def __init__(self) -> None:
            super().__init__()
            self.discarded: list[Any] = []

        def instantiate(self, *args: Any, **how: Any) -> Any:
            raise torch.OutOfMemoryError("no room for the graph\nand more lines")

        def discard(self, recording: Any) -> None:  # type: ignore[override]  # SimDriver's is static
            self.discarded.append(recording)

    broken = Broken()
    launcher = launcher_of(hungry, driver=broken)
    x = moved(64)
    # WHEN it is called THEN both recordings are given back, and the reason is the error's first line
    assert_same(launcher([x]), hungry(x))
    assert len(broken.discarded) == 2
    assert [r.message for r in launcher.reasons] == ["no room for the graph"]


def test_captures_that_differ_are_refused() -> None:
    # GIVEN functions that do something else each time that they are called
    calls = iter(range(100))

    def other_kernels(x: Tensor) -> tuple[Tensor]:
        return (x.sin() if next(calls) % 2 else x.cos(),)

    def other_numbers(x: Tensor) -> tuple[Tensor]:
        return (x * next(calls),)

    def other_sizes(x: Tensor) -> tuple[Tensor]:
        return (x.new_empty(next(calls) + 1).zero_().sum() + x,)

    def other_values(x: Tensor) -> tuple[Any, ...]:
        return x + 1, next(calls)

    found = []
    for function in (other_kernels, other_numbers, other_sizes, other_values):
        launcher = launcher_of(function)
        # WHEN they are called THEN nothing is graphed, and the reason names what differed
        launcher([moved(4)])
        launcher([moved(4)])
        assert launches(launcher) == 0
        found.append((launcher.reasons[0].code, launcher.reasons[0].operation))
    assert found == [
        ("unstable-capture", "sin"),
        ("unexplained-word", "mul.Tensor"),
        ("unstable-capture", ""),
        ("unstable-capture", ""),
    ]


DIFFERS, GIVEN = "differ between two captures", "an address that was given as a number: the simulator"
MADE_OF_ADDRESSES: dict[str, tuple[Callable[[int, int], int], str]] = {
    "a distance between two": (lambda x, y: y - x, DIFFERS),
    "what is left of one below a page": (lambda x, y: x % 4096, DIFFERS),
    "what is left of one beyond its alignment": (lambda x, y: y % 256, DIFFERS),
    "its number of elements": (lambda x, y: x // 8, DIFFERS),
    "its lower half": (lambda x, y: x % (1 << 32), DIFFERS),
    "itself": (lambda x, y: x, GIVEN),
    "one of its elements": (lambda x, y: y + 16, GIVEN),
    "its alignment": (lambda x, y: y % 8, ""),
}


@pytest.mark.parametrize("what", MADE_OF_ADDRESSES)
def test_a_number_made_of_addresses_is_never_kept(what: str) -> None:
    # GIVEN a function that computes with a number made of where its inputs lie, of which one is aligned to 8 bytes only
    number, refused = MADE_OF_ADDRESSES[what]

    def located(x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x + number(DRIVER.address_of(x), DRIVER.address_of(y)),)

    launcher = launcher_of(located)
    for call in range(6):
        x, y = moved(8, seed=call, dtype=torch.int64), moved(64, dtype=torch.int64)[2 * call + 1 :]
        # WHEN it is called with inputs elsewhere THEN its numbers are eager's
        assert_same(launcher([x, y]), located(x, y))
    # AND it is launched only where the number is the same wherever they lie
    assert (launches(launcher) > 0) == (refused == "")
    assert [refused in reason.message for reason in launcher.reasons] == [True] * bool(refused)
    assert set(codes(launcher)) <= {"unexplained-word"}


def test_two_threads_may_call_one_launcher() -> None:
    # GIVEN a launcher that nobody has called, and two threads with inputs of their own
    launcher = launcher_of(hungry)
    inputs = [[moved(512, seed=10 * t + call) for call in range(20)] for t in range(2)]
    expected = [[hungry(x) for x in own] for own in inputs]
    found: list[list[Any]] = [[], []]
    ready = threading.Barrier(2)

    def work(t: int) -> None:
        ready.wait()
        for x in inputs[t]:
            found[t].append(launcher([x]))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(2)]
    # WHEN both call it all the time
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # THEN every call of both is right, from one executable
    for t in range(2):
        assert len(found[t]) == 20
        for a, b in zip(found[t], expected[t], strict=True):
            assert_same(a, b)
    assert len(variants(launcher)) == 1
    assert launcher.reasons == []
    assert launches(launcher) + launcher.ungraphed_calls == 40
    assert launches(launcher) >= 19  # the capturing thread's, all but its first; the other may be done by then


def test_only_one_partition_is_captured_at_a_time() -> None:
    # GIVEN a partition whose first call is under way on another thread, and one whose code has run before
    entered, go_on = threading.Event(), threading.Event()

    def slow(x: Tensor) -> tuple[Tensor]:
        entered.set()
        assert go_on.wait(60)
        return (x + 1,)

    first, second, fresh = launcher_of(slow), launcher_of(hungry), launcher_of(hungry)
    x = moved(64)
    second.pause()
    second([x])
    second.resume()
    thread = threading.Thread(target=first, args=([x],))
    thread.start()
    assert entered.wait(60)
    # WHEN that one is called THEN it runs ungraphed without waiting: its turn comes later
    assert_same(second([x]), hungry(x))
    assert (second.variants, second.reasons) == ({}, [])
    # AND code that has never run waits: it may be tuned, and what waits for the device then breaks a capture
    waiting = threading.Thread(target=fresh, args=([x],))
    waiting.start()
    waiting.join(0.2)
    assert fresh.calls.ungraphed == 0
    go_on.set()
    for each in (thread, waiting):
        each.join(60)
    # AND later all have their graphs
    for _ in range(2):
        assert_same(first([x]), (x + 1,))
        assert_same(second([x]), hungry(x))
        assert_same(fresh([x]), hungry(x))
    assert (launches(first), launches(second), launches(fresh)) == (2, 1, 2)


def test_code_that_calls_a_partition_does_not_wait_for_itself() -> None:
    # GIVEN a partition that calls another one, which has never run  WHEN it is called THEN neither waits
    inner = launcher_of(hungry)
    outer = launcher_of(lambda x: (inner([x])[0] + 1,))
    x = moved(64)
    began = time.monotonic()
    for _ in range(3):
        assert_same(outer([x]), (hungry(x)[0] + 1,))
    assert time.monotonic() - began < 30


def test_a_first_call_inside_the_user_s_own_capture_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a launcher that nobody has called, and a capture of the user's own, in which no memory may be mapped
    launcher = launcher_of(hungry)
    mapped: list[int] = []
    phantom = DRIVER.phantom

    def noted(side: int) -> Any:
        mapped.append(side)
        return phantom(side)

    monkeypatch.setattr(DRIVER, "phantom", noted)
    x = moved(64)
    expected = hungry(x)
    graph = cuda_twin.CUDAGraph()
    # WHEN it is called in there
    with cuda_twin.graph(graph):
        found = launcher([x])
    # THEN its work is part of the user's graph
    graph.replay()
    assert_same(found, expected)
    assert (launcher.variants, launcher.reasons, mapped) == ({}, [], [])
    # AND calls outside get a graph of their own
    for _ in range(2):
        assert_same(launcher([x]), expected)
    assert launches(launcher) == 1


def test_a_later_call_inside_the_user_s_own_capture_is_part_of_it_too() -> None:
    # GIVEN a launcher that has its graph, and a capture of the user's own
    launcher = launcher_of(hungry)
    x = moved(64)
    expected = hungry(x)
    for _ in range(2):
        launcher([x])
    graph = cuda_twin.CUDAGraph()
    # WHEN it is called in there
    with cuda_twin.graph(graph):
        found = launcher([x])
    # THEN its kernels, not a launch of ours, are part of the user's graph
    graph.replay()
    assert_same(found, expected)
    assert launches(launcher) == 1
    # AND it goes on launching outside
    assert_same(launcher([x]), expected)
    assert launches(launcher) == 2


def test_two_threads_may_call_one_compiled_model() -> None:
    # GIVEN a compiled model that has run once
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(DEVICE).eval()
    fast = torch.compile(model, backend=paramgraph)
    inputs = [moved(3, 8, seed=seed) for seed in range(12)]
    failures: list[BaseException] = []

    def work(own: list[Tensor]) -> None:
        try:
            with torch.no_grad():
                for x in own:
                    assert torch.equal(host(fast(x)), host(model(x)))
        except BaseException as error:
            failures.append(error)

    with torch.no_grad():
        fast(moved(3, 8))
    threads = [threading.Thread(target=work, args=(inputs[k::2],)) for k in range(2)]
    # WHEN two threads call it THEN both get eager's numbers
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    torch._dynamo.reset()


def test_a_deleted_model_takes_its_executables_and_its_memory_with_it() -> None:
    # GIVEN memory as it is before there is a model
    torch._dynamo.reset()
    gc.collect()
    cuda_twin.empty_cache()
    before = DRIVER.memory()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(DEVICE)
    known = set(compiled_graphs())
    fast = torch.compile(model, backend=paramgraph)
    for _ in range(3):
        fast(torch.randn(4, 64).to(DEVICE)).sum().backward()
    executables = [
        weakref.ref(v.executables[0])
        for graph in compiled_graphs()
        if graph not in known
        for one in graph.launchers
        for v in variants(one)
    ]
    del known
    assert len(executables) == 2
    # WHEN the model is deleted and Dynamo forgets it
    del model, fast
    torch._dynamo.reset()
    gc.collect()
    # THEN its executables are gone, and so is all its memory
    assert [ref() for ref in executables] == [None, None]
    cuda_twin.empty_cache()
    assert DRIVER.memory() == before


def test_a_refused_partition_says_so_once_however_often_it_is_called() -> None:
    # GIVEN a partition that returns what is on the host
    def to_host(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, torch.zeros(2)

    launcher = launcher_of(to_host)
    # WHEN it is called often THEN there is one reason
    for _ in range(4):
        launcher([moved(4)])
    assert codes(launcher) == ["host-output"]
    assert launcher.reasons[0].message == "output 1 is on cpu: its value would be frozen"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_in_a_capture_and_is_then_as_before(enabled: bool) -> None:
    # GIVEN a partition whose first call is captured, and one whose capture fails
    seen = []

    def run(inputs: list[Any]) -> tuple[torch.Tensor]:
        if DRIVER.is_capturing():
            seen.append(gc.isenabled())
            if len(seen) > 2:
                raise RuntimeError("no")
        return (inputs[0] * 2,)

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        for _ in range(2):
            # WHEN called THEN nothing is collected meanwhile
            Launcher(DRIVER, PartitionCode("test", run))([torch.ones(4).to(DRIVER.device)])
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False] * 3
