"""Autocast around a call or in it: a traced backward works in the types in which eager's does."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from tests.integration.test_parameterize_sim import equal, launches, randn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()


def cast(enabled: bool = True, **how: Any) -> Any:
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=enabled, **how)


class Island(nn.Module):
    """One layer in the lower precision, and one that is kept out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        with cast(enabled=False):
            return self.second(hidden.float()).tanh()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight @ weight.t(), x.t() @ gradient


class OwnBackward(nn.Module):
    """A backward of the user's that multiplies in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Any:
        return _Scaled.apply(x, self.weight)


class Exponent(nn.Module):
    """A backward that takes the exponential of what the forward left in the lower precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        return _Decayed.apply(self.first(x))


class _Decayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0].exp() * 1.7


class Plain(nn.Module):
    """What nearly everybody has: whether autocast is on behind the forward decides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Any:
        return self.body(x).softmax(-1)


class Inside(nn.Module):
    """The same region, opened in the call."""

    def __init__(self) -> None:
        super().__init__()
        self.island = Island()

    def forward(self, x: Tensor) -> Any:
        with cast():
            return self.island(x)


def trained(model: nn.Module, call: Callable[[Tensor], Any], *, around: bool, inside: bool) -> list[Any]:
    found: list[Any] = []
    for seed in range(4):
        x = randn(4, 6, seed=seed).requires_grad_()
        model.zero_grad()
        with cast(enabled=around):
            y = call(x)
            if inside:
                y.float().sin().sum().backward()
        if not inside:
            y.float().sin().sum().backward()
        found += [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found


def both(kind: type[nn.Module], **how: bool) -> tuple[list[Any], list[Any], Any]:
    torch.manual_seed(0)
    model = kind().to(DEVICE)
    made = pgk.parameterize(model, verify="off")
    return trained(model, made, **how), trained(model, model, **how), made


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
@pytest.mark.parametrize("kind", [Island, OwnBackward, Exponent])
def test_a_backward_that_autocast_would_change_runs_as_it_is(kind: type[nn.Module], inside: bool) -> None:
    # GIVEN autocast around a call, whose backward works in a type that autocast would change
    ours, theirs, made = both(kind, around=True, inside=inside)
    # WHEN it is trained, and backward() is called in the region or behind it THEN gradients are eager's
    assert equal(ours, theirs)
    # AND the report says what decides
    (reason,) = pgk.report(made).reasons
    assert reason.code == "not-traceable"
    assert "whether it is on around backward() decides" in reason.message
    assert launches(made) == 0


@pytest.mark.parametrize(
    ("kind", "around", "inside"), [(Plain, True, False), (Plain, True, True), (Inside, False, False)]
)
def test_other_backwards_are_launched(kind: type[nn.Module], around: bool, inside: bool) -> None:
    # GIVEN a backward of which autocast decides nothing, or the region opened in the call
    ours, theirs, made = both(kind, around=around, inside=inside)
    # WHEN trained THEN as eager, from graphs
    assert equal(ours, theirs)
    assert pgk.report(made).reasons == ()
    assert launches(made) >= 4


def test_a_weight_used_twice_is_cast_each_time_where_eager_keeps_no_casts_either() -> None:
    # GIVEN a layer that is called twice, and autocast that keeps no casts of weights
    layer = nn.Linear(6, 6).to(DEVICE)

    def function(x: Tensor) -> Any:
        with cast(cache_enabled=False):
            return layer(layer(x).tanh())

    made = pgk.parameterize(function, verify="off")
    # WHEN trained THEN gradients are eager's, bit for bit
    assert equal(trained(layer, made, around=False, inside=False), trained(layer, function, around=False, inside=False))
    assert launches(made) >= 4


@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
def test_a_backward_that_first_ran_under_autocast_is_no_other_later(compile_: Any) -> None:
    # GIVEN a model whose first backward runs where autocast is on, and was off around the call
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)).to(DEVICE)
    made = compile_(model)
    for call in range(6):
        x, y = (randn(4, 6, seed=call).requires_grad_() for _ in range(2))
        model(y).sum().backward()
        loss = made(x).sum()
        with cast(enabled=call < 2):
            loss.backward()
        # WHEN it runs again, with autocast on or off THEN it is what the call was: in float32
        assert equal([x.grad], [y.grad])
    assert launches(made) >= 6
