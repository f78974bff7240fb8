"""What tests ask of a number that is given: ``if step < self.warmup``, and another number that goes the other way.

A number close by often goes the same way. So one call is given numbers that note which comparisons they are in.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Frame

Number = int | float
Argument = tuple[int, str]  # which one, and a path within it
_COMPUTES = ("add", "sub", "mul", "floordiv", "truediv", "mod")
_COMPARES = ("lt", "le", "gt", "ge", "eq", "ne")
_MOST_OF_LINE = 2
_NEAR, _FAR = 8, 12  # steps of one, and doublings


class Ask(NamedTuple):
    """A comparison that a line has made: which argument decides it, how, and what it was."""

    argument: Argument
    place: tuple[CodeType, int]
    decides: Callable[[Number], Any]
    was: bool
    beyond: Number = 0  # how far off the number is that it is compared with

    def turns(self, value: Number) -> bool:
        """Whether it is another one for another number."""
        try:
            return bool(self.decides(value)) != self.was
        except ArithmeticError:
            return False


class _Asked:
    """A number that notes what is asked of it, and of what is computed of it."""

    argument: Argument
    of: Callable[[Number], Any]
    asks: list[Ask]

    def __bool__(self) -> bool:
        was = bool(_plain(self))
        _note(self, lambda value: bool(self.of(value)), was)
        return was


class _AskedInt(_Asked, int):
    __hash__ = int.__hash__


class _AskedFloat(_Asked, float):
    __hash__ = float.__hash__


def _plain(value: Any) -> Any:
    if isinstance(value, _AskedInt):
        return int.__index__(value)
    return float.__float__(value) if isinstance(value, _AskedFloat) else value


def _note(asked: _Asked, decides: Callable[[Number], Any], was: bool, beyond: Number = 0) -> None:
    frame = sys._getframe(2)
    if not is_library(frame.f_code.co_filename):
        asked.asks.append(Ask(asked.argument, (frame.f_code, frame.f_lineno), decides, was, beyond))


def _computing(name: str, turned: bool) -> Callable[[Any, Any], Any]:
    compute = getattr(operator, name)

    def computed(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        other, of = _plain(other), self.of
        pair = (other, _plain(self)) if turned else (_plain(self), other)
        made = (lambda value: compute(other, of(value))) if turned else (lambda value: compute(of(value), other))
        return noting(compute(*pair), self.argument, self.asks, made)

    return computed


def _comparing(name: str) -> Callable[[Any, Any], Any]:
    compare = getattr(operator, name)

    def compared(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        other, of = _plain(other), self.of
        was = compare(_plain(self), other)
        _note(self, lambda value: compare(of(value), other), was, other - _plain(self))
        return was

    return compared


for _kind in (_AskedInt, _AskedFloat):
    for _name in _COMPUTES:
        setattr(_kind, f"__{_name}__", _computing(_name, turned=False))
        setattr(_kind, f"__r{_name}__", _computing(_name, turned=True))
    for _name in _COMPARES:
        setattr(_kind, f"__{_name}__", _comparing(_name))


def noting(value: Any, argument: Argument, asks: list[Ask], of: Callable[[Number], Any] = lambda value: value) -> Any:
    """A number that is like another one, and notes what is asked of it; anything else as it is."""
    kind = {int: _AskedInt, float: _AskedFloat}.get(type(value))
    if kind is None:
        return value
    found = kind(value)
    found.argument, found.asks, found.of = argument, asks, of
    return found


def first_of_each(asks: list[Ask]) -> list[Ask]:
    """The first comparisons of each line, of which ``0.2 < t < 0.8`` has two, and a loop many."""
    there: dict[tuple[Any, Argument], list[Ask]] = {}
    for each in asks:
        there.setdefault((each.place, each.argument), []).append(each)
    return [each for some in there.values() for each in some[:_MOST_OF_LINE]]


def is_at(frame: Frame, place: tuple[CodeType, int]) -> bool:
    """Whether a line is the one that has asked."""
    return (frame.line, frame.file) == (place[1], display_name(place[0].co_filename))


def turning(ask: Ask, value: Number) -> Iterator[Number]:
    """Numbers for which a test goes the other way, those close by first."""
    whole = type(value) is int
    steps = [*range(1, _NEAR + 1), *(2**n for n in range(4, _FAR))] if whole else [2.0**n for n in range(-6, _FAR)]
    near = [each for step in steps for each in (value + step, value - step)]
    there = value + ask.beyond
    met = [each for each in (there, there + steps[0], there - steps[0]) if not whole or type(each) is int]
    tried = [each for each in [*(near if whole else met), *(met if whole else near), 0] if value < 0 or each >= 0]
    yield from (type(value)(each) for each in tried if ask.turns(each))
