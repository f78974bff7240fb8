"""What calls count is told wherever a program keeps it, also where nothing of these calls shows it on the device."""

from __future__ import annotations

import collections
import contextvars
import heapq
import itertools
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.test_diagnose_other_ways import told

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
LATE = 50  # calls, of which a diagnosis makes a few


class Answers:
    """Counts how often it is asked for, as an attribute or as a method."""

    def __init__(self) -> None:
        self.n = 0

    def __get__(self, one: Any, kind: Any) -> int:
        self.n += 1
        return self.n


class Called:
    """Counts its calls."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Owner:
    """Has what counts in its class."""

    asked = Answers()
    tick = Called()

    def __init__(self) -> None:
        self.__mine = 0

    @property
    def mine(self) -> int:
        """One more each time."""
        self.__mine += 1
        return self.__mine


def _in_context() -> int:
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def _in_an_attribute(held: Any) -> Callable[[], int]:
    held.calls = 0

    def count() -> int:
        held.calls += 1
        return int(held.calls)

    return count


def _in_a_mapping(held: Any, key: Any) -> Callable[[], int]:
    held[key] = 0

    def count() -> int:
        held[key] += 1
        return int(held[key])

    return count


def _by_another_name() -> Callable[[], int]:
    seen = list[int]()

    def count() -> int:
        rows = seen
        rows.append(1)
        return len(rows)

    return count


def _on_a_heap() -> Callable[[], int]:
    todo = [0]

    def count() -> int:
        heapq.heappush(todo, 1)
        return len(todo)

    return count


def _on_a_function() -> Callable[[], int]:
    def count() -> int:
        kept: Any = vars(count)["kept"]
        kept["n"] += 1
        return int(kept["n"])

    count.kept = {"n": 0}  # type: ignore[attr-defined]
    return count


class Kind(type):
    """Has a count of its own."""

    n = 0


class OfAKind(metaclass=Kind):
    """One of them."""


def _of_its_class() -> int:
    type(OfAKind).n += 1
    return OfAKind.n


KEY, LOCAL = Called(), threading.local()
owner = Owner()
PLACES = {
    "a context variable": _in_context,
    "a descriptor": lambda: owner.asked,
    "an object of the class": lambda: owner.tick(),
    "a private name": lambda: owner.mine,
    "a tensor": _in_an_attribute(torch.zeros(1)),
    "a module of torch's": _in_an_attribute(model := nn.Sequential(nn.Linear(3, 3)).to(DEVICE)),
    "a parameter": _in_an_attribute(nn.Parameter(torch.zeros(1))),
    "a dictionary of weak keys": _in_a_mapping(weakref.WeakKeyDictionary[Any, int](), KEY),
    "a class of classes": _of_its_class,
    "a thread": _in_an_attribute(LOCAL),
    "a chain of dictionaries": _in_a_mapping(collections.ChainMap[Any, int](), "n"),
    "another name": _by_another_name(),
    "a heap": _on_a_heap(),
    "a function": _on_a_function(),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_count_is_told_wherever_it_is_kept(place: str) -> None:
    # GIVEN a step that does something else once it has been called often
    count = PLACES[place]

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x) * 2.0 if count() < LATE else x

    # WHEN diagnosed THEN it is told that something is counted, and the count is as it was
    before = count()
    found = pgk.diagnose(step, torch.ones(3, device=DEVICE))
    assert "host-counter" in found.codes, found
    assert count() == before + 1


def test_a_reset_by_a_generator_of_an_object_that_hardly_ever_comes_is_told() -> None:
    # GIVEN a draw of an object's own generator, which none of these calls comes to
    class Augment:
        rng = random.Random(0)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if self.rng.random() < 1e-9:
                x = x.flip(0)
            return x * 2.0

    # WHEN diagnosed THEN the branch is told
    found = pgk.diagnose(Augment(), torch.ones(3, device=DEVICE))
    assert any(code == "branch-frozen" for code, _ in told(found)), found


def test_an_iterator_that_gives_the_same_for_long_is_told() -> None:
    # GIVEN a schedule that is even in these calls, and no more once it has gone on
    rates, steps = itertools.chain([0.5] * LATE, itertools.repeat(0.1)), iter(range(9))

    def step(x: torch.Tensor) -> torch.Tensor:
        rate = next(rates)
        return x * rate

    def moves(x: torch.Tensor) -> torch.Tensor:
        rate = next(steps)
        return x * rate

    # WHEN diagnosed THEN the line that asks for it is told; one that moves is told where it is used
    found = pgk.diagnose(step, torch.ones(3, device=DEVICE))
    assert told(found) == {("scalar-frozen", "rate = next(rates)")}, found
    assert told(pgk.diagnose(moves, torch.ones(3, device=DEVICE))) == {("scalar-frozen", "return x * rate")}
