"""Gradients that are not one tensor each: of results that nobody uses, zeros that no call makes; and batched ones."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import paramgraph_kit as pgk
from paramgraph_kit.backend.direct import absent, training
from paramgraph_kit.backend.direct.calls import DirectCall
from tests.integration import test_direct_calls
from tests.integration.test_direct_calls import DEVICE, is_direct

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
made = test_direct_calls.made


class Caching(nn.Module):
    """A layer that returns its keys and values beside its result, as language models do unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(2, 4, 16)), k * 1.0, v.contiguous()


class Made(TorchDispatchMode):
    """Names of the operations that fill or copy while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("zeros", "zero_", "fill_", "copy_", "new_zeros", "zeros_like", "clone"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def trained(compiled: Any, eager: nn.Module, model: nn.Module, use: Callable[[Any], Tensor], steps: int = 5) -> None:
    """Train both, with gradients compared at each step."""
    for step in range(steps):
        x = torch.randn(2, 4, 16, device=DEVICE)
        for each, module in ((compiled, model), (eager, eager)):
            module.zero_grad()
            use(each(x)).backward()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert ours.grad is not None
            expected = torch.zeros_like(ours) if theirs.grad is None else theirs.grad  # torch.compile never says None
            assert torch.equal(ours.grad, expected), step


USES: dict[str, Callable[[Any], Tensor]] = {
    "the first": lambda results: results[0].square().mean(),
    "the keys": lambda results: results[1].square().mean(),
    "the first and the values": lambda results: results[0].mean() + results[2].square().sum(),
}


@pytest.mark.parametrize("most", [absent.MOST, 0], ids=["kept", "too large"])
def test_results_that_nobody_uses_have_eagers_gradients(
    most: int, made: list[DirectCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a layer with three results
    monkeypatch.setattr(absent, "MOST", most)
    model = Caching().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="paramgraph")

    # WHEN the loss is made of some of them, of others, and of the first again THEN gradients are eager's
    for use in (*USES.values(), *USES.values()):
        trained(compiled, eager, model, use)
    assert is_direct(made[0])


def test_zeros_for_them_are_made_once(made: list[DirectCall], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a trained layer whose cache nobody uses, launched although a mode looks on
    monkeypatch.setattr(training, "is_watched", lambda: False)
    model = Caching().to(DEVICE)
    compiled = torch.compile(model, backend="paramgraph")
    trained(compiled, copy.deepcopy(model), model, USES["the first"])
    results = compiled(torch.randn(2, 4, 16, device=DEVICE))

    # WHEN it is trained once more
    with torch.autograd.set_multithreading_enabled(False), Made() as operations:
        torch.autograd.backward(results[0], torch.ones_like(results[0]))

    # THEN nothing is filled or copied but the gradient that is given
    assert operations.names == []


class Writing(torch.autograd.Function):
    """Its backward writes into the gradient that it is given."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.add_(1.0) * 2


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_backward_that_writes_into_its_gradient_spoils_no_zeros(made: list[DirectCall]) -> None:
    # GIVEN a function of two results, of which the backward of one writes into its gradient
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), Writing.apply(x)

    compiled = torch.compile(function, backend="paramgraph")

    # WHEN that result is not used THEN gradients are those of the first call, again and again
    found: list[Any] = []
    for _ in range(6):
        x = torch.ones(8, 8, device=DEVICE, requires_grad=True)
        compiled(x)[0].sum().backward()
        found.append(x.grad)
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_gradient_that_is_a_result_s_gradient_is_not_shared(made: list[DirectCall]) -> None:
    # GIVEN a function that passes the gradients of two results on to two arguments
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x + 1, y.view(4, 16) + 1, (x * y).sum()

    compiled = torch.compile(function, backend="paramgraph")
    for call in range(5):
        x, y = (torch.ones(8, 8, device=DEVICE, requires_grad=True) for _ in range(2))
        compiled(x, y)[call % 2].sum().backward()

        # WHEN the caller writes to what it gets THEN no later call sees it
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, float(call % 2 == 0)))
        assert torch.equal(y.grad, torch.full_like(y, float(call % 2 == 1)))
        x.grad.fill_(7.0)
        y.grad.fill_(7.0)


def test_zeros_on_another_stream_are_its_own(made: list[DirectCall]) -> None:
    # GIVEN a trained layer whose cache nobody uses
    model = Caching().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="paramgraph")
    trained(compiled, eager, model, USES["the first"])
    step = made[0]._step
    assert step is not None

    # WHEN it is trained on a stream of the user's
    stream = pgk.cuda.Stream()
    stream.wait_stream(pgk.cuda.current_stream())
    with pgk.cuda.stream(stream):
        trained(compiled, eager, model, USES["the first"])

    # THEN its zeros were filled there
    assert len(step._zeros._made) == 2


@pytest.mark.parametrize("first", ["batched", "ordinary"])
@pytest.mark.parametrize("make", [pgk.parameterize, lambda f: torch.compile(f, backend="paramgraph")])
def test_gradients_that_come_batched_are_run_as_they_are(make: Callable[[Any], Any], first: str) -> None:
    # GIVEN a function that is trained, and of which a Jacobian is taken now and then
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).tanh() @ w.t() * 2

    def gradients(f: Any, inputs: list[Tensor], batched: bool) -> Any:
        y = f(*inputs)
        if not batched:
            return torch.autograd.grad(y, inputs, torch.ones_like(y).cumsum(0))
        rows = torch.eye(y.numel(), device=DEVICE).view(-1, *y.shape)
        return torch.autograd.grad(y, inputs, rows, is_grads_batched=True)

    called = make(function)
    for batched in (first == "batched", False, False, False, True, False, True, False, False):
        inputs = [torch.randn(4, 4, device=DEVICE, requires_grad=True) for _ in range(2)]
        # WHEN gradients are asked for, one or many at once THEN they are eager's
        for one, other in zip(gradients(called, inputs, batched), gradients(function, inputs, batched), strict=True):
            torch.testing.assert_close(one, other)

    # THEN what is not batched is launched, and the report tells why the rest is not
    report = pgk.report(called)
    assert any("is_grads_batched" in reason.message for reason in report.reasons)
    assert len([row for row in report.rows if row.launches >= 4]) == 2
