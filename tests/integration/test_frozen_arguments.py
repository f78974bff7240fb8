"""Arguments of every kind through frozen calls give what an ordinary call gives, with either kind of guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import paramgraph_kit as pgk
from paramgraph_kit.backend.frozen.calls import FrozenCalls
from paramgraph_kit.backend.frozen.guards import equal_tests
from tests.integration.test_parameterize_sim import randn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward
Arguments = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def held(values: Any, change: Callable[[Any], Any]) -> Callable[[int], Arguments]:
    """One object at each call, with other contents from the seventh on."""

    def given(number: int) -> Arguments:
        if number == 6:
            change(values)
        return randn(4), values

    return given


def then(first: Any, other: Any) -> Callable[[int], Arguments]:
    """A value, and from the seventh call on another one."""
    return lambda number: (randn(4), first if number < 6 else other)


def twice(number: int) -> Arguments:
    x = randn(4)
    return (x, x) if number % 2 else (x, randn(4))


def laid(lay: Callable[[Tensor], Tensor]) -> Callable[[int], Arguments]:
    return lambda number: (randn(4, 4) if number < 6 else lay(randn(4, 4)), 1.0)


# Functions of two arguments, what they are given at each call, and whether guards of the inputs can tell.
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Arguments], bool]] = {
    "a list": (lambda x, y: x * y[0] + y[1], held([1.0, 2.0], lambda y: y.__setitem__(0, 5.0)), False),
    "a dict": (lambda x, y: x * y["k"], held({"k": 2.0}, lambda y: y.update(k=7.0)), False),
    "an object": (lambda x, y: x * y.k, held(SimpleNamespace(k=1.0), lambda y: setattr(y, "k", 9.0)), False),
    "a list of tensors": (lambda x, y: x * 2, lambda _: (randn(4), [randn(4), randn(4)]), False),
    "a tuple": (lambda x, y: x * y[0], then((1.0, (2, "a")), (3.0, (2, "a"))), True),
    "a number": (lambda x, y: x * y, then(1.5, 2.5), True),
    "a number of another kind": (lambda x, y: x.to(torch.int64) + torch.full_like(x, y).long(), then(1, True), True),
    "a text": (lambda x, y: x.sin() if y == "sin" else x.cos(), then("sin", "cos"), True),
    "nothing": (lambda x, y: x * 2 if y is None else x * y, then(None, 3.0), True),
    "one tensor twice": (lambda x, y: x * y if x is y else x + y, twice, True),
    "a result twice": (lambda x, y: (lambda z: (z, z))(x * y), then(1.5, 1.5), True),
    "an expanded tensor": (lambda x, y: x + y, laid(lambda x: x[:1].expand(4, 4)), True),
    "a transposed tensor": (lambda x, y: x + y, laid(lambda x: x.t()), True),
    "another type": (lambda x, y: x + y, laid(lambda x: x.double()), True),
    "a shifted tensor": (lambda x, y: x + y, laid(lambda x: torch.cat((x.flatten(), x[0]))[1:17].view(4, 4)), True),
}


@pytest.mark.parametrize("guards", ["dynamo", "inputs"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_frozen_call_has_todays_arguments(name: str, guards: str) -> None:
    # GIVEN a compiled function whose calls are frozen, if they can be
    function, given, seen = PROGRAMS[name]
    compiled = pgk.compile(function, guards=guards)
    assert isinstance(compiled, FrozenCalls)
    with torch.no_grad():
        for number in range(9):
            # WHEN an argument changes, in place or for another
            arguments = given(number)
            ours, theirs = compiled(*arguments), function(*arguments)
            # THEN results are those of the function
            assert pytree.tree_structure(ours) == pytree.tree_structure(theirs)
            for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
                assert torch.equal(a, b), number
                assert a.stride() == b.stride()
    # AND where guards of the inputs cannot tell, none is frozen
    if guards == "inputs" and not seen:
        assert not compiled._frozen
        assert compiled.reason == "an argument is of a kind that may change while it is the same object, such as a list"


def _named_as_the_machinery(x: Tensor, f: Tensor, made: Tensor, m: float = 1.0, *, check: Tensor, direct: Any) -> Any:
    return x * f + check, made + 1, direct, m


def _several(x: Tensor, *args: Tensor, scale: float = 2.0, **kwargs: Tensor) -> tuple[Tensor, ...]:
    return x * scale, *(y + 1 for y in args), *(kwargs[name] * 2 for name in sorted(kwargs))


def _passing_on(*args: Any, **kwargs: Any) -> Any:  # as decorators do, those of transformers for one
    return _several(*args, **kwargs)


CALLS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...], dict[str, Any]]] = {
    "names of the machinery": (_named_as_the_machinery, (4,), ("f", "made", "check"), {"direct": 3.0}),
    "the same, others first": (_named_as_the_machinery, (4, 4), ("check", "made"), {"direct": None, "m": 2.0}),
    "more than there are places for": (_several, (4, 4, 4), (), {}),
    "names that are collected": (_several, (4,), ("n0", "a0", "made"), {"scale": 3.0}),
    "both": (_several, (4, 4), ("kwargs", "args"), {}),
    "passed on": (_passing_on, (4, 4), ("f", "unmoved"), {"scale": 0.5}),
}


@pytest.mark.parametrize("guards", ["dynamo", "inputs"])
@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_every_name_and_number_are_followed(name: str, guards: str) -> None:
    # GIVEN a function whose arguments are named as what frozen calls are made of, or collected
    function, sizes, names, plain = CALLS[name]
    compiled = pgk.compile(function, guards=guards)
    with torch.no_grad():
        for call in range(8):
            # WHEN it is called with other tensors each time
            given = [randn(size) for size in sizes]
            named = {key: randn(4) for key in names} | plain
            if call == 7 and "scale" in named:  # AND once with another value
                named["scale"] = 7.0
            ours, theirs = compiled(*given, **named), function(*given, **named)

            # THEN results are those of the function
            for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
                assert torch.equal(a, b) if isinstance(b, Tensor) else a == b, call

    # AND calls were frozen
    assert len(compiled._frozen) >= 1, compiled.reason


def test_plain_values_are_told_by_bits_and_kinds() -> None:
    values = [
        0,
        1,
        1.0,
        -0.0,
        0.0,
        float("nan"),
        True,
        False,
        None,
        "1",
        b"1",
        (0.0,),
        (-0.0,),
        (0,),
        (),
        ((1, 2), "a"),
    ]
    for value in values:
        scope: dict[str, Any] = {}
        tests = equal_tests({"a": value}, scope)
        assert tests is not None
        for other in values:
            same = eval(" and ".join(tests), scope | {"a": other})
            assert same == (other is value), (value, other)
    assert equal_tests({"a": [1]}, {}) is None
    assert equal_tests({"a": (1, [2])}, {}) is None
    assert equal_tests({"a": object()}, {}) is None
