"""What a step finds as it is entered: asked of each place, or of all at once where nothing has changed."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.capture.pair import Kind
from paramgraph_kit.step.holders import Holder
from paramgraph_kit.step.steady import Entering


class Asked:
    """A cell that counts how often it is asked what it holds."""

    def __init__(self, kind: str, target: Any, reads: list[int], exits: list[int | None], held: Any = None) -> None:
        self.holder, self.reads, self.exits = Holder(kind, "it", target), reads, exits
        self.held, self.asked = held, 0

    def entering(self) -> Any:
        self.asked += 1
        return [self.holder.target.grad] if self.held is None else self.held


def entered(arguments: int = 2) -> tuple[Entering, list[Any]]:
    """Two gradients that stay, with something before, between and behind them that does not."""
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.zeros(2)
    several = [torch.full((1,), float(n)) for n in range(3)]
    cells: list[Any] = [
        Asked("dict", {}, [2, 0], [None], several),
        Asked("gradient", weights[0], [0], [0]),
        Asked("dict", {}, [], [None], []),
        Asked("gradient", weights[1], [0], [1]),
        Asked("dict", {}, [1], [None], several),
    ]
    outputs = [SimpleNamespace(kind=Kind.ARGUMENT, source=arguments + place) for place in (2, 3)]
    captured: Any = SimpleNamespace(outputs=outputs)
    return Entering(captured, arguments, cells), cells


def test_gradients_that_were_the_same_twice_are_not_asked_any_more() -> None:
    # GIVEN gradients that stay, beside what does not
    enters, cells = entered()
    before, first, _, second, behind = cells
    one, other = first.holder.target, second.holder.target
    assert [cell in enters.written for cell in cells] == [True, False, True, False, True]

    def found() -> tuple[int, int, int]:
        now = enters.now()
        assert now is not None
        assert [x is y for x, y in zip(now, (before.held[2], before.held[0], one.grad, other.grad), strict=False)] == (
            [True] * 4
        )
        assert now[4] is behind.held[1]
        assert len(now) == 5
        return first.asked, second.asked, behind.asked

    # WHEN entered THEN each is asked until they were the same twice in a row
    assert [found() for _ in range(4)] == [(1, 1, 1), (2, 2, 2), (2, 2, 3), (2, 2, 4)]
    looks = enters._looks
    # AND from another one on again, whichever it is
    for weight in (one, other):
        weight.grad = torch.ones(2)
        begun = first.asked
        assert [found()[0] - begun for _ in range(3)] == [1, 2, 2]
        assert enters._looks is not looks
        looks = enters._looks
    # AND looking at them all again makes nothing
    found()
    assert enters._looks is looks


def test_a_gradient_that_looks_otherwise_is_asked_again() -> None:
    # GIVEN gradients that were the same twice
    enters, cells = entered()
    for _ in range(3):
        enters.now()
    assert cells[3].asked == 2
    # WHEN one of them lies elsewhere, and is the same tensor THEN it is asked what it is
    cells[3].holder.target.grad.data = torch.ones(2)
    enters.now()
    assert cells[3].asked == 3


@pytest.mark.parametrize("place", range(5))
def test_a_step_is_not_entered_where_one_place_holds_something_else(place: int) -> None:
    # GIVEN places of which one holds what no graph was captured for WHEN entered THEN there is nothing to launch with
    enters, cells = entered()
    cells[place].entering = lambda: None
    assert enters.now() is None
