"""Whose memory is whose behind some steps: results that later ones write over, and states that are exchanged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.restore.keeper import storage_key


class KeptResults:
    """The results of steps as their caller would keep them, beside copies of them."""

    def __init__(self) -> None:
        self._steps: list[dict[int, tuple[torch.Tensor, torch.Tensor]]] = []
        self._last: Any = None

    def note(self, result: Any, found: Any, copied: Any) -> None:
        """One more step's ``result``, and what of it is ``found``."""
        if result is self._last and isinstance(result, (dict, list)):
            self._steps.clear()  # one container, in which callers see what is there now
        self._last = result
        pairs = enumerate(zip(tree_leaves(found), tree_leaves(copied), strict=True))
        # Detached, as a loss that is kept keeps all that its backward pass needs.
        self._steps.append({at: (v.detach(), copy) for at, (v, copy) in pairs if isinstance(v, torch.Tensor)})

    def overwritten(self) -> dict[int, bool]:
        """The places of those among a step's results that are other steps' as well; True: other values by now."""
        found = dict[int, bool]()
        for number, step in enumerate(self._steps):
            for at, (value, copy) in step.items():
                there = storage_key(value)
                others = [each[at][0] for each in self._steps[number + 1 :] if at in each]
                is_other = not torch.equal(_plain(value.cpu()), _plain(copy))
                if is_other or (there and any(storage_key(each) == there for each in others)):
                    found[at] = found.get(at, False) or is_other
        return found


_CONTAINERS = (dict, list, set, deque)
_WHOLE = object()  # the key of what has no entries


def moved_among(before: Sequence[Any], now: Sequence[Any]) -> set[int]:
    """Tensors, by their ids, that all who held them at first have given up, and that others hold: two are exchanged.

    Who has them is seen by what each holds; which of two pieces of memory that is, nobody asks.
    """
    same = _same(before, now)
    then, today = _held_at(before, same), _held_at(now, same)
    return {each for each, places in then.items() if each in today and places.isdisjoint(today[each])}


def _same(before: Sequence[Any], now: Sequence[Any]) -> set[tuple[int, Any]]:
    """Where one dictionary or list is before and now, which holds in both what it holds today: it tells by itself."""
    then = {(number, key): value for number, key, value in _wholes_and_entries(before)}
    every = (((number, key), value) for number, key, value in _wholes_and_entries(now))
    return {at for at, value in every if isinstance(value, _CONTAINERS) and then.get(at) is value}


def _wholes_and_entries(values: Sequence[Any]) -> Iterator[tuple[int, Any, Any]]:
    yield from ((number, _WHOLE, value) for number, value in enumerate(values))
    yield from _entries(values)


def _held_at(values: Sequence[Any], same: set[tuple[int, Any]]) -> dict[int, set[tuple[int, Any, int]]]:
    found: dict[int, set[tuple[int, Any, int]]] = {}
    for number, key, value in _entries(values):
        if not same.isdisjoint(((number, key), (number, _WHOLE))):
            continue
        for at, leaf in enumerate(tree_leaves(value)):
            if isinstance(leaf, torch.Tensor):
                found.setdefault(id(leaf), set()).add((number, key, at))
    return found


def _entries(values: Sequence[Any]) -> Iterator[tuple[int, Any, Any]]:
    for number, value in enumerate(values):
        if isinstance(value, dict):
            yield from ((number, key, each) for key, each in value.items())
        else:
            yield number, None, list(value) if isinstance(value, (set, deque)) else value


def _plain(value: torch.Tensor) -> torch.Tensor:
    return value.nan_to_num() if value.is_floating_point() else value
