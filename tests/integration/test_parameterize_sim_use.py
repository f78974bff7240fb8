"""pgk.parameterize on the simulated device in use: mistakes, copies, threads, compiled code around it, watching."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.trace.errors import DeviceMismatchError, UnsupportedError
from tests.integration.test_parameterize_sim import equal, launches, randn, twins

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward


def test_mistakes_are_told_in_one_line() -> None:
    model = nn.Linear(3, 3)
    compiled = pgk.compile(lambda x: x)
    for wrong, text in [
        (3, "parameterize takes a function or a module, not an int"),
        (compiled, "parameterize was given what torch.compile returned: pass the function or module itself"),
        (
            pgk.parameterize(model),
            "parameterize was given what parameterize returned: pass the function or module itself",
        ),
    ]:
        with pytest.raises(UnsupportedError) as error:
            pgk.parameterize(wrong)
        assert str(error.value) == text
    with pytest.raises(UnsupportedError, match=r"unknown option 'fast'"):
        pgk.parameterize(model, fast=True)
    with pytest.raises(DeviceMismatchError, match=r"^'weight' of the parameterized module is on cpu, but graphs are"):
        pgk.parameterize(model, torch.ones(1, 3))
    moved = pgk.parameterize(model.to(DEVICE))
    assert equal(moved(randn(1, 3, seed=0)), model(randn(1, 3, seed=0)))  # it was moved: all is well
    del model.bias
    with pytest.raises(AttributeError, match="no attribute 'bias'"):  # the user's own mistakes come out as they are
        moved(randn(1, 3))
    with pytest.raises(NameError, match="undefined"):
        pgk.parameterize(lambda x: undefined(x))(randn(1))  # type: ignore[name-defined]  # noqa: F821


def test_never_graphing_copies_and_what_is_left_behind() -> None:
    # GIVEN a parameterized module, used, and a copy of it
    model, _ = twins(lambda: nn.Linear(3, 3))
    step = pgk.parameterize(model)
    x = randn(2, 3)
    for _ in range(2):
        expected = step(x)
    other = copy.deepcopy(step)
    # THEN the copy wraps a copied module, and traces for itself
    assert other.__wrapped__ is not model
    assert equal(other(x), expected)
    assert repr(other) == "Parameterized(Linear, 1 traces)"
    assert launches(step) == 1
    # AND select="never" runs the same code without graphs
    never = pgk.parameterize(model, select="never")
    assert equal([never(x), never(x)], [expected, expected])
    assert launches(never) == 0
    # AND neither inputs nor the module outlive their users
    gone = [weakref.ref(x), weakref.ref(step), weakref.ref(model)]
    del x, step, model, never, expected
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_calls_in_compiled_code_and_from_two_threads() -> None:
    # GIVEN a parameterized function called by a compiled one
    step = pgk.parameterize(lambda x: x.sin() * 2)
    torch._dynamo.reset()
    outer = torch.compile(lambda x: step(x) + 1, backend="eager")
    x = randn(5)
    assert equal(outer(x), x.sin() * 2 + 1)
    torch._dynamo.reset()
    # WHEN two threads call it THEN both have their results
    wrong: list[int] = []

    def work() -> None:
        for n in range(10):
            mine = torch.full((5,), float(n)).to(DEVICE)
            if not equal(step(mine), mine.sin() * 2):
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert launches(step) >= 19


def test_watch_and_explore_take_it() -> None:
    step = pgk.parameterize(lambda x: x.sin())
    with pgk.watch() as trace:
        for seed in range(3):
            step(randn(3, seed=seed))
    assert (len(trace.captures), len(trace.launches)) == (1, 2)
    assert "1 partitions" in repr(pgk.explore(step))


@pytest.mark.parametrize("circle", ["itself", "two"])
def test_an_error_that_is_its_own_cause_is_raised_and_nothing_hangs(circle: str) -> None:
    # GIVEN a function that raises an error whose causes come back to it
    def run(x: torch.Tensor) -> torch.Tensor:
        try:
            raise ValueError("mine")
        except ValueError as error:
            if circle == "two":
                other = KeyError("other")
                other.__cause__ = error
                raise error from other
            raise error from error

    step = pgk.parameterize(run)
    # WHEN called, again and again THEN it is eager's error, and other functions go on
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            step(randn(2))
    assert pgk.parameterize(lambda x: x * 2)(torch.ones(2, device=DEVICE)).tolist() == [2.0, 2.0]
    assert [reason.code for reason in pgk.report(step).reasons] == ["not-traceable"]


def test_streams_of_ones_own_are_not_traced_away() -> None:
    # GIVEN a function whose second branch is on a stream of its own, and whose caller waits for that stream's event
    side, done = pgk.cuda.Stream(), pgk.cuda.Event()
    model = nn.Linear(3, 3).to(DEVICE)

    def branches(x: torch.Tensor) -> torch.Tensor:
        here = pgk.cuda.current_stream()
        side.wait_stream(here)
        with pgk.cuda.stream(side):
            left = model(x).sin()
            done.record()
        right = model(x)
        here.wait_stream(side)
        return torch.mul(left, right)

    step = pgk.parameterize(branches)
    # WHEN called THEN it runs as it is and the event happens, with the reason and what to do
    for seed in range(3):
        done.recorded_at, x = None, randn(2, 3, seed=seed)
        got = step(x)
        assert done.recorded_at is not None
        assert equal(got, branches(x))
    (reason,) = pgk.report(step).reasons
    assert reason.code == "user-stream"
    # AND captured with its streams it is one launch, in two branches
    whole = pgk.parameterize(lambda x: branches(x).detach(), state=model)
    with pgk.watch() as trace:
        for seed in range(4):
            done.recorded_at, x = None, randn(2, 3, seed=seed)
            got = whole(x)
            assert done.recorded_at is not None
            assert equal(got, branches(x).detach())
    assert pgk.report(whole).reasons == ()
    assert {node.lane for node in trace.captures[0].nodes} == {0, 1}


def test_a_launch_waits_for_no_trace_but_one_of_its_own_modules() -> None:
    # GIVEN a function that has been called with two shapes, a module that has been, and a trace of it under way
    other = pgk.parameterize(lambda x: x * 2)
    model = nn.Linear(3, 3).to(DEVICE)
    own = pgk.parameterize(model)
    x = randn(2, 3)
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            other(randn(2)), other(randn(3)), own(x)
    begun, go = [False], threading.Lock()  # an event that is set would make it run as it is
    go.acquire()

    def slow(x: torch.Tensor) -> torch.Tensor:
        begun[0] = True
        with go:
            pass
        result: torch.Tensor = model(x) + 1
        return result

    results: dict[str, torch.Tensor] = {}

    def call(name: str, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with torch.no_grad():
            results[name] = step(x)

    tracing = threading.Thread(target=call, args=("traced", pgk.parameterize(slow)))
    tracing.start()
    while not begun[0]:
        time.sleep(0.01)
    # WHEN others are launched meanwhile THEN what has nothing to do with it does not wait
    with torch.no_grad():
        assert [other(torch.ones(n, device=DEVICE)).tolist() for n in (2, 3)] == [[2.0] * 2, [2.0] * 3]
    # AND what shares its module waits, and sees its own parameters
    waiting = threading.Thread(target=call, args=("own", own))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    go.release()
    for thread in (waiting, tracing):
        thread.join(60)
    assert torch.equal(results["own"].cpu(), expected.cpu())
    assert torch.equal(results["traced"].cpu(), (expected + 1).cpu())


@pytest.mark.parametrize("calls", [0, 3])
def test_a_call_in_somebody_s_own_capture_compares_nothing(calls: int) -> None:
    # GIVEN a function whose calls are all compared, which waits for the device
    step = pgk.parameterize(lambda x: x * 2 + 1, verify="always")
    x = torch.arange(4.0, device=pgk.device())
    for _ in range(calls):
        step(x)

    # WHEN somebody captures a call of it
    graph = pgk.cuda.CUDAGraph()
    step.__wrapped__(x)
    with pgk.cuda.graph(graph):
        result = step(x)

    # THEN the capture has it, as it has any other call
    for n in range(3):
        x.copy_(torch.arange(4.0) + n)
        graph.replay()
        assert result.tolist() == (x * 2 + 1).tolist()
        assert step(x).tolist() == result.tolist()
