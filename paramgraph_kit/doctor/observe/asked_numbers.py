"""What tests ask of a number that is given: ``if step < self.warmup``, and another number that goes the other way.

A number close by often goes the same way, and gives the same where it is rounded or looked up: ``step // 30``,
``step & 16``, ``int(step * 0.1)``, ``rates.get(step)``. So one call is given numbers that note what they are in.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

from paramgraph_kit.doctor.observe.asked_texts import asked_text
from paramgraph_kit.doctor.observe.asks import Argument, Ask, Number
from paramgraph_kit.driver.files import is_library

_COMPUTES = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")
_OF_BITS = ("and_", "or_", "xor", "rshift", "lshift")
_IN_STEPS = ("floordiv", "and_", "rshift")  # many numbers give the same
_ROUNDS: dict[str, Callable[[Number], Any]] = {"round": round, "floor": math.floor, "ceil": math.ceil, "trunc": int}
_COMPARES = ("lt", "le", "gt", "ge", "eq", "ne")
_LARGEST = 2**16  # of what is shifted, or taken to a power, and of tables


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
    def __hash__(self) -> int:
        _note_tables(self)
        return hash(_plain(self))


class _AskedFloat(_Asked, float):
    __hash__ = float.__hash__

    def __int__(self) -> int:
        return int(_plain(_rounded(self, int)))


def _plain(value: Any) -> Any:
    if isinstance(value, _AskedInt):
        return int.__index__(value)
    return float.__float__(value) if isinstance(value, _AskedFloat) else value


def _note(asked: _Asked, decides: Callable[[Number], Any], was: bool, beyond: Number = 0) -> None:
    frame = sys._getframe(2)
    if not is_library(frame.f_code.co_filename):
        asked.asks.append(Ask(asked.argument, (frame.f_code, frame.f_lineno), decides, was, beyond))


def _note_steps(asked: _Asked, of: Callable[[Number], Any], was: Any) -> None:
    """Note where what is computed of it is another one."""
    frame = sys._getframe(2)
    if not is_library(frame.f_code.co_filename):
        asked.asks.append(Ask(asked.argument, (frame.f_code, frame.f_lineno), lambda value: of(value) != was, False))


def _note_tables(asked: _Asked) -> None:
    """Note what is found of it in the tables that a line may look it up in: ``rates.get(step)``, ``step in late``."""
    frame = sys._getframe(2)
    if is_library(frame.f_code.co_filename):
        return
    code, of = frame.f_code, asked.of
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    held: list[Any] = [*code.co_consts]  # with what is written out there
    held += [{**frame.f_globals, **frame.f_locals}.get(n) for n in names]
    objects = [each for each in held if hasattr(each, "__dict__") and not isinstance(each, type)]
    held += [vars(each).get(n) for each in objects for n in names]
    kinds = (dict, set, frozenset, tuple)
    tables = [each for each in held if isinstance(each, kinds) and len(each) < _LARGEST]
    found = [{k: t[k] if isinstance(t, dict) else True for k in t if type(k) in (int, float)} for t in tables]
    found += [dict.fromkeys((n for k in t if type(k) is tuple for n in k), True) for t in tables]  # a part of a key
    own = _plain(asked)
    other = next((key for table in found for key in table if key != own), None)
    if other is not None:

        def decides(value: Number) -> bool:
            return any(table.get(of(value)) is not table.get(own) for table in found)

        asked.asks.append(Ask(asked.argument, (code, frame.f_lineno), decides, False, other - own))


def _rounded(asked: Any, how: Callable[..., Any], *more: Any) -> Any:
    of, was = asked.of, how(_plain(asked), *more)
    frame = sys._getframe(2)
    if not is_library(frame.f_code.co_filename):
        place = frame.f_code, frame.f_lineno
        asked.asks.append(Ask(asked.argument, place, lambda value: how(of(value), *more) != was, False))
    return noting(was, asked.argument, asked.asks, lambda value: how(of(value), *more))


def _computing(name: str, turned: bool) -> Callable[[Any, Any], Any]:
    compute = getattr(operator, name)

    def computed(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        second = other.of if isinstance(other, _Asked) and other.argument == self.argument else None
        other, of = _plain(other), self.of
        if name in ("pow", "lshift") and max(abs(other), abs(_plain(self))) > _LARGEST:
            return NotImplemented
        then = second or (lambda _: other)
        made = (
            (lambda value: compute(then(value), of(value)))
            if turned
            else (lambda value: compute(of(value), then(value)))
        )
        pair = (other, _plain(self)) if turned else (_plain(self), other)
        found = compute(*pair)
        if name in _IN_STEPS:
            _note_steps(self, made, found)
        return noting(found, self.argument, self.asks, made)

    return computed


def _rounding(how: Callable[..., Any]) -> Callable[..., Any]:
    def rounded(self: Any, *more: Any) -> Any:
        return _rounded(self, how, *more)

    return rounded


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
    for _name, _how in _ROUNDS.items():
        setattr(_kind, f"__{_name}__", _rounding(_how))
    for _name in _COMPARES:
        setattr(_kind, f"__{_name}__", _comparing(_name))


def _told(how: Callable[..., str]) -> Callable[..., str]:
    def told(self: Any, *more: Any) -> str:
        of, own = self.of, _plain(self)
        return asked_text(how(own, *more), own, self.argument, self.asks, lambda value: how(of(value), *more))

    return told


for _kind in (_AskedInt, _AskedFloat):
    _kind.__str__, _kind.__repr__, _kind.__format__ = _told(str), _told(repr), _told(format)  # type: ignore[method-assign]


def _divided(self: Any, other: Any) -> Any:
    return self // other, self % other


_AskedInt.__divmod__ = _AskedFloat.__divmod__ = _divided  # type: ignore[method-assign]
for _name in _OF_BITS:
    setattr(_AskedInt, f"__{_name.rstrip('_')}__", _computing(_name, turned=False))
    setattr(_AskedInt, f"__r{_name.rstrip('_')}__", _computing(_name, turned=True))


def noting(value: Any, argument: Argument, asks: list[Ask], of: Callable[[Number], Any] = lambda value: value) -> Any:
    """A number that is like another one, and notes what is asked of it; anything else as it is."""
    kind = {int: _AskedInt, float: _AskedFloat}.get(type(value))
    if kind is None:
        return value
    found = kind(value)
    found.argument, found.asks, found.of = argument, asks, of
    return found
