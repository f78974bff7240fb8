"""Calls of which somebody hears or transforms each operation run as they are: a launch is none of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import paramgraph_kit as pgk
from tests.integration.test_parameterize_sim import equal, randn

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch's own, for tangents
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning"),  # the same, newer
]
DEVICE = pgk.device()
Function = Callable[..., Any]


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x).sum(-1)


class Times(TorchFunctionMode):
    """Makes every tanh so many times larger, and counts."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.heard = factor, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard += int(func is torch.tanh)
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.tanh else result


class Counts(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard += 1
        return func(*args, **(kwargs or {}))


def tangent(f: Function, x: torch.Tensor) -> Any:
    ad: Any = forward_ad  # in part untyped
    with ad.dual_level():
        return ad.unpack_dual(f(ad.make_dual(x, torch.ones_like(x)))).tangent.clone()


def in_modes(f: Function, x: torch.Tensor) -> Any:
    found = []
    for factor in (2.0, 5.0):  # one mode after another is as many modes
        with Times(factor) as mode:
            found.append((f(x), mode.heard))
    return found


def counted(f: Function, x: torch.Tensor) -> Any:
    with Counts() as mode:
        return f(x), mode.heard


WAYS: dict[str, Callable[[Function], Function]] = {
    "function": pgk.parameterize,
    "step": lambda f: pgk.parameterize(f, state=()),
    "inputs": lambda f: pgk.compile(f, guards="inputs"),
    "dynamo": lambda f: pgk.compile(f, guards="dynamo"),
}
HEARD: dict[str, Callable[[Function, torch.Tensor], Any]] = {
    "vmap": lambda f, x: torch.vmap(f)(x),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "tangent": tangent,
    "function modes": in_modes,
    "dispatch mode": counted,
}
OF_INDUCTOR = {"tangent", "dispatch mode"}  # compiled code is heard otherwise than eager is, and keeps no tangents


@pytest.mark.parametrize(
    ("way", "how"), [(w, h) for w in WAYS for h in HEARD if w in ("function", "step") or h not in OF_INDUCTOR]
)
def test_what_is_heard_or_transformed_is_no_launch(way: str, how: str) -> None:
    # GIVEN a function that is launched from a graph
    made = WAYS[way](plain)
    for call in range(5):
        made(randn(3, 4, seed=call))
    for call in range(3):
        x = randn(3, 4, seed=call)
        # WHEN it is called so THEN the result is the function's own
        found, expected = HEARD[how](made, x), HEARD[how](plain, x)
        assert equal(found, expected)
        # AND in between it is launched as before
        assert equal(made(x), plain(x))
    assert sum(row.launches or 0 for row in pgk.report(made).rows) >= 5


def test_a_function_that_is_first_called_under_a_mode_is_traced_without_it() -> None:
    # GIVEN one that nobody has called WHEN its first calls are heard THEN nothing of the mode stays in its graph
    made = pgk.parameterize(plain)
    for call in range(5):
        x = randn(3, 4, seed=call)
        with Times(7.0):
            assert equal(made(x), plain(x))
        assert equal(made(x), plain(x))
    # AND a default device is a mode that does not count
    torch.set_default_device(DEVICE)
    try:
        before = sum(row.launches or 0 for row in pgk.report(made).rows)
        xs = [torch.ones(3, 4) * k for k in range(4)]
        for x in xs:
            assert equal(made(x), plain(x))
    finally:
        torch.set_default_device(None)
    assert sum(row.launches or 0 for row in pgk.report(made).rows) > before


class Doubles(TorchDispatchMode):
    """Makes every gradient that goes through a tanh twice as large, and counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard += 1
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.tanh_backward.default else result


@pytest.mark.parametrize("compile_", [pgk.compile, pgk.parameterize])
@pytest.mark.parametrize("first", [0, 4], ids=["from the first call on", "once it is launched"])
def test_a_mode_around_the_backward_alone_hears_its_operations(compile_: Any, first: int) -> None:
    # GIVEN a call that nobody hears, and a mode around its backward
    weight = randn(4, 4, seed=9).requires_grad_()

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).tanh() * x.sin()).tanh().exp()

    fast = compile_(function)
    for call in range(9):
        found: list[Any] = []
        for each in (fast, function):
            x, mode = randn(4, 4, seed=call).requires_grad_(), Doubles()
            y = each(x, weight)
            # WHEN it is there now and then
            with mode if call >= first and call % 3 else torch.enable_grad():
                y.sum().backward()
            found.append([x.grad, weight.grad, mode.heard > 0])
            weight.grad = None
        # THEN gradients are those of the operations that it heard
        assert equal(*found)
    assert sum(row.launches for row in pgk.report(fast).rows) >= 7
