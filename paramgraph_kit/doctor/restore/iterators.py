"""Iterators of the user's that go back: ``next(schedule)`` gives the same numbers in each trial, and to the user."""

from __future__ import annotations

import csv
import itertools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.restore.repeated import Repeated

_OF_KINDS: tuple[Any, ...] = ([], (), range(1), {}, {}.values(), {}.items(), set(), "", b"", csv.reader(()))
_BUILT_IN: tuple[type, ...] = (
    *(types.GeneratorType, zip, map, filter, enumerate, reversed, type(iter(int, 1)), type(reversed([]))),
    *(type(iter(each)) for each in _OF_KINDS),
    *(each for each in vars(itertools).values() if isinstance(each, type)),
)
_LOADERS = "torch.utils.data.dataloader"


@contextmanager
def repeatable(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], HostState | None]]:
    """While this lasts the iterators that a function leads to can go back; behind it they give what they would have.

    Gives the arguments, and what the function leads to, where there are no iterators. Of arguments that are iterators
    themselves a list's or a tuple's is put back: the caller holds it.
    """
    known: dict[int, Repeated] = {}
    kinds: dict[type, bool] = {}  # a model has thousands of values of a few

    def goes_on(kind: type) -> bool:
        if (found := kinds.get(kind)) is None:
            found = kinds[kind] = _goes_on(kind)
        return found

    def repeated_of(value: Any) -> Any:
        return known.setdefault(id(value), Repeated(cast(Iterator[Any], value))) if goes_on(type(value)) else value

    state = HostState(function, args, kwargs)
    put = [(holder, key, repeated_of(value)) for holder in state.holders for key, value in _held_by(holder)]
    put = [(holder, key, value) for holder, key, value in put if type(value) is Repeated]
    for holder, key, repeated in put:
        _put(holder, key, repeated)
    given = tuple(map(repeated_of, args)), {name: repeated_of(value) for name, value in kwargs.items()}
    try:
        yield *given, None if known else state
    finally:
        after = {id(each): each.rest() for each in known.values()}
        for holder, key, repeated in put:
            if any(each is repeated for _, each in _held_by(holder)):
                _put(holder, key, after[id(repeated)])


def _goes_on(kind: type) -> bool:
    """Whether objects of a type are iterators that are known; the objects answer as they like, and are not asked."""
    if issubclass(kind, _BUILT_IN):
        return True
    try:
        return bool(kind.__module__ == _LOADERS) and "__next__" in dir(kind)
    except Exception:
        return False


def _held_by(holder: Holder) -> list[tuple[Any, Any]]:
    """What names, entries and attributes hold."""
    if holder.of_torch or holder.kind not in ("cell", "global", "attributes", "container"):
        return []
    if holder.kind in ("cell", "global"):
        return [(None, holder.read())]
    if isinstance(holder.target, dict):
        return list(dict.items(holder.target))
    return list(enumerate(holder.target)) if isinstance(holder.target, list) else []


def _put(holder: Holder, key: Any, value: Any) -> None:
    if holder.kind in ("cell", "global"):
        holder.write(value)
    elif isinstance(holder.target, dict):
        dict.__setitem__(holder.target, key, value)
    else:
        holder.target[key] = value
