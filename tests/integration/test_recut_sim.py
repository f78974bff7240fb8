"""One operation that cannot be captured costs its own launch, not the whole partition."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.driver.tensors import same_bits
from paramgraph_kit.partition import host_reads
from tests.integration.launch_bench import moved

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


@torch.library.custom_op("pgk_recut::experts", mutates_args=())
def experts(x: Tensor, ends: Tensor) -> Tensor:
    """As models write a mixture of experts where no kernel does it."""
    made = torch.zeros_like(x)
    start = 0
    for number, end in enumerate(ends.tolist()):
        made[start:end] = x[start:end] * (number + 1)
        start = end
    return made


@experts.register_fake
def _(x: Tensor, ends: Tensor) -> Tensor:
    return torch.empty_like(x)


def scaled(x: Tensor) -> Any:
    return x * x.sum().item()


calls = itertools.count()


def salted(x: Tensor, salt: float) -> Any:
    """Its kernel is given another number at each call where there is salt."""
    return (x + (next(calls) * 0.5 if salt else 0.25)) * 0 + x


@pytest.fixture(autouse=True)
def hidden() -> Iterator[None]:
    """An operation whose inside nobody can read, and nothing learned before or after."""
    torch._dynamo.reset()
    learned = dict(host_reads._learned)
    with torch.library._scoped_library("pgk_hidden", "DEF") as library:
        library.define("scaled(Tensor x) -> Tensor")
        library.impl("scaled", scaled, "CompositeExplicitAutograd")
        library.impl("scaled", torch.empty_like, "Meta")
        library.define("salted(Tensor x, float salt) -> Tensor")
        library.impl("salted", salted, "CompositeExplicitAutograd")
        library.impl("salted", lambda x, salt: torch.empty_like(x), "Meta")
        yield
    host_reads._learned.clear()
    host_reads._learned.update(learned)
    torch._dynamo.reset()


def reported(fast: Callable[..., Any], plain: Callable[..., Any], calls: int) -> Any:
    """The report after so many calls, each of which gave eager's numbers."""
    for call in range(calls):
        x = moved(6, 4, seed=call)
        assert same_bits(fast(x), plain(x))
    return pgk.report(fast)


def mixture(x: Tensor) -> Any:
    ends = (x.abs().sum(1) > 0).cumsum(0).to(torch.int32)[[2, 5]]
    return (torch.ops.pgk_recut.experts((x @ x.T).relu(), ends) @ x).sin() + 1


def secretive(x: Tensor) -> Any:
    y = torch.ops.pgk_hidden.scaled((x @ x.T).relu() + 1)
    return (y @ x).sin() + 1


def twice(x: Tensor) -> Any:
    y = torch.ops.pgk_hidden.scaled(x.sin())
    return torch.ops.pgk_hidden.scaled(y.cos()) @ x.T


@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
def test_a_custom_operation_that_reads_on_the_host_is_left_out_at_once(compile_: Callable[[Any], Any]) -> None:
    # GIVEN a mixture of experts whose operation asks for its groups on the host
    # WHEN called THEN numbers are eager's, what is around it is graphed, and the reason says what it reads
    report = reported(compile_(mixture), mixture, calls=4)
    assert sum(row.graphed for row in report.rows) == 2
    assert [reason.message for reason in report.reasons] == ["its Python reads a tensor on the host: ends.tolist()"]
    assert sum(row.launches for row in report.rows) == 2 * 3


@pytest.mark.parametrize("function", [secretive, twice])
@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
def test_after_a_failed_capture_what_failed_is_left_out(function: Any, compile_: Callable[[Any], Any]) -> None:
    # GIVEN an operation of which nobody knows that it waits
    # WHEN called, first with a capture that fails THEN numbers are eager's
    report = reported(compile_(function), function, calls=5)
    # AND the rest is graphed, with what the capture failed in as the reason
    graphed = [row for row in report.rows if row.graphed]
    assert len(graphed) == 2 + (function is twice)
    assert all(row.launches == 3 for row in graphed)
    (text,) = {reason.message.partition(": ")[0] for reason in report.reasons}
    assert text == "its capture failed"
    assert {reason.operation for reason in report.reasons} == {"pgk_hidden.scaled"}
    assert {reason.frame.text for reason in report.reasons if reason.frame} <= {
        "y = torch.ops.pgk_hidden.scaled((x @ x.T).relu() + 1)",
        "y = torch.ops.pgk_hidden.scaled(x.sin())",
        "return torch.ops.pgk_hidden.scaled(y.cos()) @ x.T",
    }
    # AND the next compilation knows it before it captures
    torch._dynamo.reset()
    again = compile_(function)
    again(moved(6, 4))
    newest = [row for row in pgk.report(again).rows if row.partition != "outside"][-len(graphed) :]
    assert [(row.graphed, row.launches) for row in newest] == [(True, 0)] * len(graphed)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # which Dynamo does itself
def test_gradients_are_eager_s_where_a_partition_was_cut_again() -> None:
    # GIVEN a training step through such an operation, of which the gradient is known
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return torch.ops.pgk_hidden.scaled(x)

        @staticmethod
        def backward(ctx: Any, given: Tensor) -> Any:
            return torch.ops.pgk_hidden.scaled(given)

    def loss(x: Tensor) -> Any:
        apply: Any = Scaled.apply
        return apply(x.sin()).cos().square().sum()

    fast = pgk.compile(loss)
    for call in range(4):
        a, b = (moved(6, 4, seed=call).requires_grad_() for _ in range(2))
        fast(a).backward()
        loss(b).backward()
        # WHEN trained THEN gradients are eager's
        assert same_bits(a.grad, b.grad)


def test_where_options_are_strict_it_is_an_error_at_every_call() -> None:
    # GIVEN such a function under strict WHEN called THEN nothing is cut again: each call says why
    fast = pgk.compile(secretive, strict=True)
    for _ in range(2):
        with pytest.raises(pgk.RefusedError) as found:
            fast(moved(6, 4))
        assert found.value.reason.code == "capture-failed"


def test_running_out_of_memory_is_no_property_of_an_operation() -> None:
    # GIVEN an error that does not speak of captures WHEN learned from THEN nothing is
    with pytest.raises(RuntimeError) as raised:
        torch.ops.aten.mm.default(torch.ones(2, 3), torch.ones(2, 3))
    assert not host_reads.learn(raised.value)
    assert "aten.mm.default" not in host_reads._learned


def seasoned(x: Tensor) -> Any:
    for salt in (0.0, 1.0, 0.0, 2.0, 0.0):
        x = torch.ops.pgk_hidden.salted(x.sin() + 1, salt)
    return x


@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
def test_a_kernel_that_nothing_explains_costs_its_own_operation(compile_: Callable[[Any], Any]) -> None:
    # GIVEN an operation that is called five times, of which two give their kernel a number that changes
    # WHEN called THEN numbers are eager's
    report = reported(compile_(seasoned), seasoned, calls=6)
    # AND all but these two calls are graphed, and nothing is learned about the operation
    assert report.kernels == (19, 21)
    assert all(row.launches >= 3 for row in report.rows if row.graphed)
    assert {(reason.code, reason.operation) for reason in report.reasons} == {("unexplained-word", "pgk_hidden.salted")}
    assert all(", in its kernel add" in reason.message for reason in report.reasons)
    assert not any("salted" in name for name in host_reads._learned)


def test_a_refused_kernel_is_an_error_where_options_are_strict() -> None:
    # GIVEN such a function under strict WHEN called THEN it is not cut again: each call says why
    fast = pgk.compile(seasoned, strict=True)
    for _ in range(2):
        with pytest.raises(pgk.RefusedError) as found:
            fast(moved(6, 4))
        assert (found.value.reason.code, found.value.reason.operation) == ("unexplained-word", "add.Tensor")
