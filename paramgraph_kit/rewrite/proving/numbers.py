"""Numbers that the user's own hold before the first of some steps and after each: those that steps move."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.host_state import HostState

_CONTAINERS = (dict, list, set, deque)
_KINDS = ("global", "cell", "attributes", "container")


class Moved(NamedTuple):
    """A number that steps move: what holds it, under which key, and what it was before the first and after each."""

    holder: Holder
    key: Any
    seen: list[Any]
    made: bool  # in the first step, after which it was looked at first


class Numbers:
    """Looks at what is held in a run, whose steps it is told of; of tensors it keeps none, nor what holds them."""

    def __init__(self, state: HostState) -> None:
        self.codes = codes_of(state)
        self.moved: list[Moved] = []
        self.listed: list[tuple[Holder, list[Any]]] = []  # lists of whole numbers that steps move
        self._state = state
        self._holders, self._made = _looked_at(state), list[Holder]()
        self._seen, self._seen_made = [_numbers(self._holders)], list[list[Any]]()

    def note(self) -> None:
        """A step is done."""
        if not self._seen_made:
            self._made = _looked_at(self._state.grown())
        self._seen.append(_numbers(self._holders))
        self._seen_made.append(_numbers(self._made))

    def done(self) -> Numbers:
        """All steps are."""
        own = list(zip(self._holders, zip(*self._seen, strict=True), strict=True))
        made = zip(self._made, zip(*self._seen_made, strict=True), strict=True)
        self.moved += [each for pair in own for each in _moved(*pair, made=False)]
        self.moved += [each for pair in made for each in _moved(*pair, made=True)]
        self.listed += [(holder, list(values)) for holder, values in own if _is_listed(values)]
        for each in (self._holders, self._made, self._seen, self._seen_made):
            each.clear()
        return self


def codes_of(state: HostState) -> tuple[CodeType, ...]:
    """What the user's functions run by now."""
    return tuple(function.__code__ for function in state.functions)


def is_looked_at(holder: Holder) -> bool:
    """Whether something of the user's holds what steps may move: a variable, an object or a container."""
    return holder.kind in _KINDS and not holder.of_torch


def _looked_at(state: HostState) -> list[Holder]:
    return [each for each in state.holders if is_looked_at(each)]


def _numbers(holders: Sequence[Holder]) -> list[Any]:
    return [_numbers_in(each) for each in holders]


def _numbers_in(holder: Holder) -> Any:
    """What it holds, as far as that is numbers: tensors of a step that are kept would keep its backward pass."""
    value = holder.read()
    if holder.kind in ("global", "cell"):  # a container of the user's own, which is looked at as that
        return value if isinstance(value, (int, float, *_CONTAINERS)) else None
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if type(each) in (int, float)}
    return value if _is_whole(value) else []


def _moved(holder: Holder, values: Sequence[Any], *, made: bool) -> Iterator[Moved]:
    if any(isinstance(each, (list, set, deque)) for each in values):
        return
    for key in list(values[0]) if isinstance(values[0], dict) else [None]:
        seen = [each.get(key) if isinstance(each, dict) else each for each in values]
        if all(type(value) in (int, float) for value in seen) and any(value != seen[0] for value in seen):
            yield Moved(holder, key, seen, made)


def _is_listed(values: Sequence[Any]) -> bool:
    whole = values[0] and all(_is_whole(each) and len(each) == len(values[0]) for each in values)
    return bool(whole) and any(each != values[0] for each in values)


def _is_whole(value: Any) -> bool:
    return type(value) is list and all(type(each) is int for each in value)
