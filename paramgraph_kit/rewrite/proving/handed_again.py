"""What the steps of a trial are handed: one that exchanges an entry of a dictionary hands its next run another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def kept_entries(given: list[Arguments], states: set[int]) -> Iterator[None]:
    """Behind this all dictionaries and lists of some steps' arguments have again what they had before.

    ``states`` gets those of the first step that have had others.
    """
    kept = [*_containers(given[:])]
    try:
        yield
    finally:
        moved = {id(container) for container, entries in kept if not _is_same(container, entries)}
        for container, entries in reversed(kept):
            container.clear()
            (container.update if isinstance(container, (dict, set)) else container.extend)(entries)
        args, kwargs = given[0]
        for each in (*args, *kwargs.values()):
            if isinstance(each, (dict, list)) and not moved.isdisjoint(id(one) for one, _ in _containers(each)):
                states.add(id(each))


def handed_on(given: list[Arguments], states: set[int]) -> list[Arguments]:
    """Arguments of some steps, of which all get what the first one gets of ``states``."""
    (args, kwargs), *others = given
    own = {place: each for place, each in (*enumerate(args), *kwargs.items()) if id(each) in states}
    later = [
        (
            tuple(own.get(place, each) for place, each in enumerate(more)),
            {name: own.get(name, each) for name, each in named.items()},
        )
        for more, named in others
    ]
    return [given[0], *later] if own else given


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, set):
        return bool(one == other)
    pairs = zip(_entries(one), _entries(other), strict=False)
    return len(one) == len(other) and all(x is y for x, y in pairs)


def _entries(value: Any) -> list[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else [*value]


def with_own_entries(given: Arguments, of: Arguments) -> Arguments:
    """Some arguments without the others' tensors in dictionaries and lists, where a step may write in place."""
    known = {id(each) for each in tree_leaves(of)}

    def one(value: Any) -> Any:
        shared = isinstance(value, torch.Tensor) and id(value) in known
        return value.detach().clone().requires_grad_(value.requires_grad) if shared else value

    def parts(value: Any) -> Any:
        return tree_map(one, value) if isinstance(value, (dict, list)) else value

    args, kwargs = given
    return tuple(map(parts, args)), {name: parts(value) for name, value in kwargs.items()}


def _containers(value: Any, inside: tuple[int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Each of them with a copy, those around others first."""
    if not isinstance(value, (dict, list, tuple, set, deque)) or id(value) in inside:
        return
    if not isinstance(value, tuple) and type(value) in (dict, list, set, deque):
        yield value, value.copy()
    for each in value.values() if isinstance(value, dict) else value:
        yield from _containers(each, (*inside, id(value)))
