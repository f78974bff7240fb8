"""Tests that lines make of a number that is given, and other numbers that go the other way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Frame

Number = int | float
Argument = tuple[int, str]  # which one, and a path within it
_MOST_OF = {False: 2, True: 4}  # of one line; by whether they are of texts
_NEAR, _FAR = 1024, 12  # steps of one, which are computed and not called, and doublings


class Ask(NamedTuple):
    """A comparison that a line has made: which argument decides it, how, and what it was."""

    argument: Argument
    place: tuple[CodeType, int]
    decides: Callable[[Number], Any]
    was: bool
    beyond: Number = 0  # how far off the number is that it is compared with
    of_text: bool = False  # nobody has compared it, but a text of it was made where other texts can be named

    def turns(self, value: Number) -> bool:
        """Whether it is another one for another number."""
        try:
            return bool(self.decides(value)) != self.was
        except (ArithmeticError, TypeError, ValueError):
            return False


def first_of_each(asks: list[Ask]) -> list[Ask]:
    """The first comparisons of each line, those of texts last, of which ``0.2 < t < 0.8`` has two, and a loop many."""
    there: dict[tuple[Any, ...], list[Ask]] = {}
    for each in asks:
        there.setdefault((each.of_text, each.place, each.argument), []).append(each)
    return [each for key in sorted(there, key=lambda key: key[0]) for each in there[key][: _MOST_OF[key[0]]]]


def is_at(frame: Frame, place: tuple[CodeType, int]) -> bool:
    """Whether a line is the one that has asked."""
    return (frame.line, frame.file) == (place[1], display_name(place[0].co_filename))


def turning(ask: Ask, value: Number) -> Iterator[Number]:
    """Numbers for which a test goes the other way, those close by first, each twice as far as the one before."""
    whole = type(value) is int
    steps = [*range(1, _NEAR + 1), 2 * _NEAR] if whole else [2.0**n for n in range(-6, _FAR)]
    near = [each for step in steps for each in (value + step, value - step)]
    there = value + ask.beyond
    met = [each for each in (there, there + steps[0], there - steps[0]) if not whole or type(each) is int]
    tried = [each for each in [*(near if whole else met), *(met if whole else near), 0] if value < 0 or each >= 0]
    far: Number = 0
    for each in tried:
        if abs(each - value) >= far and ask.turns(each):
            yield type(value)(each)
            far = 2 * abs(each - value)
