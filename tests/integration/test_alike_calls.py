"""Calls of a parameterized function that are like an earlier one are launched in one look; others never are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.direct.located import MISSED
from paramgraph_kit.backend.registry import compiled_graphs
from tests.integration.test_parameterize_sim import equal, randn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward


def mixed(x: Tensor, y: Tensor, scale: float = 1.0, *, times: int = 1) -> tuple[Tensor, float, Tensor]:
    """Two results and a number between them; two arguments that are one are told apart."""
    return x * scale + (1.0 if x is y else 2.0), scale, x @ y * times


def frozen(step: Any, *args: Any, **named: Any) -> Any:
    """What the calls that are launched in one look give, MISSED where none was made for this."""
    with torch.no_grad():
        found = (known.call(args, named) for known in step._alike)
        return next((result for result in found if result is not MISSED), MISSED)


def warmed(fn: Any, *args: Any, **named: Any) -> Any:
    step = pgk.parameterize(fn)
    with torch.no_grad():
        for _ in range(4):
            step(*args, **named)
    assert frozen(step, *args, **named) is not MISSED
    return step


def test_numbers_are_told_by_their_bits_and_kinds() -> None:
    # GIVEN a call with a number WHEN it comes with the same, with another, or with one that is equal only
    x, y = randn(4, 4), randn(4, 4)
    step = warmed(mixed, x, y, 0.0, times=1)
    assert equal(frozen(step, y, x, 0.0, times=1), mixed(y, x, 0.0, times=1))
    # THEN it is launched for the same alone
    others: list[tuple[Any, Any]] = [(-0.0, 1), (0, 1), (False, 1), (float("nan"), 1), (0.0, 1.0), (0.0, True)]
    for scale, times in others:
        assert frozen(step, x, y, scale, times=times) is MISSED, (scale, times)
        assert equal(step(x, y, scale, times=times)[0], mixed(x, y, scale, times=times)[0]) or scale != scale


def test_a_call_in_another_form_is_another_call() -> None:
    x, y = randn(4, 4), randn(4, 4)
    step = warmed(mixed, x, y)
    assert frozen(step, x, y) is not MISSED
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {"y": y}),
        ((x, y, 1.0), {}),
        ((x, y), {"times": 1}),
        ((x, x), {}),  # code can tell whether two arguments are one
        ((x, y.t()), {}),
        ((x.double(), y.double()), {}),
        ((x, nn.Parameter(y)), {}),
        ((x, y.cpu()), {}),
        ((x[:2], y), {}),
    ]
    for args, named in forms:
        assert frozen(step, *args, **named) is MISSED
        if all(t.device.type == DEVICE.type for t in (*args, *named.values()) if isinstance(t, Tensor)):
            assert equal(step(*args, **named), mixed(*args, **named))


def test_kinds_of_calls_in_turn_are_each_launched_at_once() -> None:
    # GIVEN a model that is called with three lengths in turn
    torch.manual_seed(0)
    first = nn.Linear(6, 6)
    model = nn.Sequential(first, nn.GELU(), nn.Linear(6, 6)).to(DEVICE)
    step = pgk.parameterize(model)
    lengths = (3, 5, 8)
    with torch.no_grad():
        for _ in range(4):
            for n in lengths:
                x = randn(n, 6)
                assert equal(step(x), model(x))
        # THEN each is launched without another look, WHEN parameters move none is
        assert all(frozen(step, randn(n, 6)) is not MISSED for n in lengths)
        first.weight.data = torch.randn_like(first.weight)
        for n in lengths:
            x = randn(n, 6)
            assert frozen(step, x) is MISSED
            assert equal(step(x), model(x))
    # AND what nobody can call any more is not kept
    assert len(step._alike) <= 2 * len(lengths)


def test_what_writes_is_launched_at_once_where_no_memory_is_shared() -> None:
    # GIVEN a cache that each call writes, as a decoding loop does
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: Tensor
            self.register_buffer("kept", torch.zeros(6, 4))

        def forward(self, x: Tensor, position: Tensor) -> Tensor:
            self.kept.index_copy_(0, position, x)
            return self.kept.cumsum(0) * x

    torch.manual_seed(0)
    model, eager = Cache().to(DEVICE), Cache().to(DEVICE)
    step = pgk.parameterize(model)
    with torch.no_grad():
        for n in range(8):
            x, position = randn(1, 4), torch.tensor([n % 6]).to(DEVICE)
            version = model.kept._version
            # WHEN it is called in turn THEN results and contents are eager's, and the version moves
            assert equal(step(x, position), eager(x, position)), n
            assert torch.equal(model.kept, eager.kept)
            assert model.kept._version > version
    assert frozen(step, x, position) is not MISSED
    # AND not where an argument lies in what is written: eager refuses that
    version = model.kept._version
    assert frozen(step, model.kept[2:3], position) is MISSED
    assert model.kept._version == version


def test_arguments_that_share_memory_are_looked_at_each_time() -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x + y

    step = pgk.parameterize(write)
    for _ in range(5):
        x, y = randn(4), randn(4)
        other = x.clone()
        assert equal(step(x, y), write(other, y))
        assert equal(x, other)
        whole = randn(8)
        twin = whole.clone()
        assert equal(step(whole[:4], whole[4:]), write(twin[:4], twin[4:]))
        assert equal(whole, twin)
        whole = randn(8)
        twin = whole.clone()
        assert equal(step(whole[::2], whole[1::2]), write(twin[::2], twin[1::2]))
        assert equal(whole, twin)
    assert frozen(step, whole[:4], whole[4:]) is MISSED


def test_a_paused_launcher_is_not_launched_from() -> None:
    x, y = randn(4, 4), randn(4, 4)
    step = warmed(mixed, x, y)
    for graph in compiled_graphs():
        for launcher in graph.launchers:
            launcher.pause()
    assert frozen(step, x, y) is MISSED
    assert equal(step(x, y), mixed(x, y))


@pytest.mark.parametrize("verify", ["first", "always"])
def test_what_shall_be_compared_is_not_launched_unseen(verify: str) -> None:
    step = pgk.parameterize(mixed, verify=verify)
    with torch.no_grad():
        for _ in range(5):
            x, y = randn(4, 4), randn(4, 4)
            assert equal(step(x, y), mixed(x, y))
    assert frozen(step, x, y) is MISSED


def test_a_module_of_another_class_is_another_model() -> None:
    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(DEVICE)
    step = warmed(model, randn(2, 3))
    model[0].__class__ = Half
    with torch.no_grad():
        x = randn(2, 3)
        assert equal(step(x), model(x))


def test_a_model_that_goes_to_and_fro_is_launched_at_once_again() -> None:
    # GIVEN a model that is evaluated between epochs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(DEVICE)
    step, x = pgk.parameterize(model), randn(2, 3)
    with torch.no_grad():
        for epoch in range(12):
            model.train(epoch % 2 == 0)
            for _ in range(40):
                step(x)
        # THEN its calls take one look after however many epochs
        assert frozen(step, x) is not MISSED
        assert equal(step(x), model(x))


def test_one_tensor_given_twice_is_one() -> None:
    # GIVEN functions of two arguments, which ask whether they are one
    linear = nn.Linear(4, 4).to(DEVICE)

    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y if x is y else x - y

    def read(x: Tensor, y: Tensor) -> Tensor:
        return linear(x) * 3 if y is linear.weight else x * y.sin() + (1 if x is y else 2)

    for fn in (write, read):
        step = pgk.parameterize(fn)
        for _ in range(4):
            # WHEN they are, or one is a member of a module THEN results, writes and gradients are eager's
            for twice in (True, False):
                for wanted in (False, fn is read):
                    ours = [randn(4, 4) for _ in range(1 if twice else 2)]
                    theirs = [t.clone() for t in ours]
                    for t in (*ours, *theirs):
                        t.requires_grad_(wanted)
                    found, expected = step(ours[0], ours[-1]), fn(theirs[0], theirs[-1])
                    assert equal(found, expected)
                    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
                    if wanted:
                        torch.autograd.backward(found.sum())
                        torch.autograd.backward(expected.sum())
                        for a, b in zip(ours, theirs, strict=True):
                            assert a.grad is not None
                            assert b.grad is not None
                            assert torch.equal(a.grad, b.grad)
            x = randn(4, 4)
            assert fn is write or equal(step(x, linear.weight), fn(x, linear.weight))
