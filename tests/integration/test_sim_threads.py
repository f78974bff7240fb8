"""The simulated device used from several threads: autograd's own among them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim import stream
from paramgraph_kit.driver.sim.machine import SWAP, machine

DEVICE = pgk.device()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def test_a_thread_that_has_traced_may_be_gone() -> None:
    # GIVEN threads that trace, before anybody else does, as compiling does, and end
    def traced() -> None:
        with FakeTensorMode():
            torch.ones(2)

    for _ in range(4):
        thread = threading.Thread(target=traced)
        thread.start()
        thread.join()
    # WHEN a fresh thread goes backward, which has autograd ask each kind of device THEN all of them are there
    found: list[float] = []

    def backward() -> None:
        filled = [torch.zeros(n) for n in range(64)]  # what memory the threads had is written by now
        x = torch.ones(4, requires_grad=True, device=DEVICE)
        (x * 3).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        found.extend(x.grad.tolist()[: len(filled)])

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert found == [3.0] * 4


def test_a_backward_beside_the_capture_of_another_thread_is_its_own() -> None:
    # GIVEN a thread that captures a backward pass, and one that trains as ever, in turn
    steps, found, failed = threading.Barrier(2), list[float](), list[BaseException]()
    w, x = (torch.ones(4, requires_grad=True, device=DEVICE) for _ in range(2))
    graph, side = pgk.cuda.CUDAGraph(), pgk.cuda.Stream()

    def trains(grad: torch.Tensor) -> torch.Tensor:
        steps.wait(30)
        steps.wait(30)  # the other one captures
        return grad * 2

    def train() -> None:
        try:
            y = w * 3
            y.register_hook(trains)  # type: ignore[no-untyped-call]
            y.sum().backward()  # type: ignore[no-untyped-call]
            assert w.grad is not None
            found.extend(w.grad.tolist())
        except BaseException as error:
            failed.append(error)
            steps.abort()

    thread = threading.Thread(target=train)
    thread.start()
    steps.wait(30)
    # WHEN a capture begins while the backward pass of the other is under way
    with pgk.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        z = x + 5
        steps.wait(30)
        thread.join(30)
    # THEN the training ran, none of it is in the graph, and nothing failed
    assert (found, failed) == ([6.0] * 4, [])
    graph.replay()
    assert (z.tolist(), w.grad.tolist() if w.grad is not None else None) == ([6.0] * 4, [6.0] * 4)


def test_backward_passes_that_begin_and_end_together_are_forgotten() -> None:
    # GIVEN threads that go backward again and again, and change places at any moment
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def begin_and_end() -> None:
        for _ in range(20_000):
            with stream.follow_this_thread([()]):
                assert any(True for _ in list(stream._table.begun))

    # WHEN all are over
    threads = [threading.Thread(target=begin_and_end) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    # THEN nothing is left of them, which would hold what they began with
    assert not stream._table.begun


def test_a_backward_pass_is_known_however_many_it_has_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a backward pass that makes more others than are known
    begins, begun = list[int](), stream._backward_begins
    number = stream.MOST_PASSES + 20

    def begin(node: Any, task: int) -> None:
        begins.append(task)
        begun(node, task)

    @torch.enable_grad()
    def inside(gradient: torch.Tensor) -> torch.Tensor:
        w = torch.ones(2, requires_grad=True, device=DEVICE)
        (w * 3).sum().backward()  # type: ignore[no-untyped-call]
        return gradient * 2

    monkeypatch.setattr(stream, "_backward_begins", begin)

    y: Any = torch.ones(2, requires_grad=True, device=DEVICE)
    for _ in range(number):
        y = y * 1
        y.register_hook(inside)
    # WHEN it runs THEN each is looked at as it begins, and the outer one at most once more
    y.sum().backward()
    assert len(begins) <= number + 2


def test_a_backward_is_captured_after_a_compiled_one() -> None:
    # GIVEN a compiled backward, which captures on autograd's own thread
    x = torch.ones(4, requires_grad=True, device=DEVICE)
    fast = pgk.compile(lambda x: (x * 2).relu())
    for _ in range(2):
        fast(x).sum().backward()
    x.grad = None
    # WHEN a user captures a forward and backward of their own
    graph, side = pgk.cuda.CUDAGraph(), pgk.cuda.Stream()
    with pgk.cuda.stream(side):
        (x * 3).sum().backward()  # type: ignore[no-untyped-call]
    x.grad = None
    with pgk.cuda.graph(graph, stream=side):
        (x * 3).sum().backward()  # type: ignore[no-untyped-call]
    graph.replay()
    # THEN autograd's thread followed the capture, as CUDA's engine does
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 4


@pytest.mark.skipif(not hasattr(torch.UntypedStorage, SWAP), reason="this torch gives no storage other memory")
def test_a_storage_may_be_resized_while_another_thread_makes_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a tensor that another thread makes just while the simulated device looks for the one that is resized
    x = torch.ones(2, device=DEVICE)
    look_up, made = machine()._ref_of, list[torch.Tensor]()

    def looked_up(storage: torch.UntypedStorage) -> Any:
        if not made:
            made.append(torch.ones(3, device=DEVICE))
        return look_up(storage)

    monkeypatch.setattr(machine(), "_ref_of", looked_up)
    # WHEN resized THEN both are right
    x.resize_(4096)
    x.fill_(2)
    assert made[0].tolist() == [1.0] * 3
    assert x.sum().item() == 2 * 4096
