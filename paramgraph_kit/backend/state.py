"""The state that a traced function reads: found by a walk, in the key of its traces, and guarded between calls."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch

from paramgraph_kit.backend.call_state import hidden_key
from paramgraph_kit.backend.functions import Torchs
from paramgraph_kit.backend.members import Members, side_effect
from paramgraph_kit.backend.reads.walk import walk
from paramgraph_kit.backend.watched import Unchanged, Watched
from paramgraph_kit.driver.torch_names import torch_name

_ASKED = ("computed", "parts", "functions")  # of no holder that could be written, or nobody's to put back
_REBUILDS = 3  # of the guard: state that is written all the time is compared value by value instead
_STAND_INS = (torch_name("FunctionalTensor"), torch_name("FakeTensor"))
_COMPARED = 32  # calls so, until the guard is made once more: a model that goes to and fro is not written all the time


class State:
    """What one walk found. ``key`` is equal for states in which the function does the same."""

    def __init__(
        self,
        roots: Sequence[Any],
        ran: Set[types.CodeType] | None,
        torchs: Torchs | None = None,  # code of torch's that ran
    ) -> None:
        found = walk(roots, ran)
        found.functions(torchs or Torchs())
        self.codes = found.codes
        self.looks_at_all = found.looks_at_all  # attributes of objects, by vars() or __dict__
        self.watched = found.watched
        self._caches = found.caches
        self.generators = found.generators
        self.on_device = found.on_device  # generators of the user's
        self.members = Members(found.modules)
        self.hidden = [tensor for _, tensor in found.tensors]
        self.hidden_ids = frozenset(map(id, self.hidden))
        self.tensors: list[torch.Tensor] = self.members.tensors() or []
        self._module_ids = tuple(map(id, self.members.modules))
        self.key = (tuple(found.key), self.members.key, tuple(map(hidden_key, self.hidden)))
        self._hidden_now = self.key[2]
        self._unchanged: Unchanged | None = None
        self._rebuilds = self._compared = 0

    @property
    def modules(self) -> tuple[int, ...]:
        """Which modules there are."""
        return self._module_ids

    def covers(self, other: State) -> bool:
        """Whether every place of ``other`` is one of this state's, so that a change of it would have been noticed."""
        own: dict[tuple[str, int], set[Any]] = {}
        for each in self.watched:
            own.setdefault((each.kind, each.identity), set()).update(each.keys)
        places = ((own.get((each.kind, each.identity)), each.keys) for each in other.watched if each.kind not in _ASKED)
        return all(keys is not None and keys.issuperset(wanted) for keys, wanted in places) and set(
            self._module_ids
        ).issuperset(other.modules)

    @property
    def settled(self) -> Unchanged | None:
        """Whether nothing was written since ``settle``: quick; None where that cannot be told so."""
        return self._unchanged

    def hidden_same(self) -> bool:
        """Whether the tensors that are no inputs are what they were."""
        return not self.hidden or tuple(map(hidden_key, self.hidden)) == self._hidden_now

    def holds(self) -> bool:
        """Whether the function would read the same, though something was written; parameters are looked up anew."""
        if not all(each.same() for each in self.watched) or not self.hidden_same():
            return False
        tensors = self.members.tensors()
        if tensors is None:
            return False
        self.tensors = tensors
        return True

    def settle(self) -> None:
        """From now on ``settled`` tells; state that is written all the time stays with ``holds``."""
        self._compared += self._rebuilds >= _REBUILDS
        if self._rebuilds < _REBUILDS or self._compared > _COMPARED:
            self._rebuilds, self._compared = self._rebuilds + 1, 0
            self._unchanged = Unchanged(self.watched, self.members.dicts)
        else:
            self._unchanged = None

    @contextmanager
    def traced(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let the modules hold ``tensors`` in the block, and nothing else stay behind.

        Raises:
            RefusedError: the block changed state, which a launched graph would not do again.
        """
        with self.members.swapped(tensors), self.unwritten():
            yield

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Let nothing that the block writes stay behind.

        Raises:
            RefusedError: the block changed state, which a launched graph would not do again.
        """
        before = [(each, each.read()) for each in self.watched if each.kind not in _ASKED]
        sizes = [cache.cache_info().currsize for _, cache in self._caches]
        changed = ""
        try:
            yield
        finally:
            for (name, cache), size in zip(self._caches, sizes, strict=True):
                if cache.cache_info().currsize != size:  # with traced tensors, perhaps
                    cache.cache_clear()
                    changed = changed or f"a result to the cache of {name}"
            for each, then in before:  # every one of them: what is left changed would be read by the next call
                now = each.read()
                if not _same(now, then):
                    place = put_back(each, then)
                    changed = changed or ("" if _same(_of_real_tensors(each, now), then) else place)
        if changed:
            raise side_effect(changed)


def _of_real_tensors(watched: Watched, now: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a table holds but for what it says of the types of stand-ins, which no real call asks for."""
    if watched.kind not in ("dict", "names"):
        return now
    keys = now[: len(now) // 2] if watched.kind == "dict" else now
    kept = [n for n, key in enumerate(keys) if not (isinstance(key, type) and issubclass(key, _STAND_INS))]
    return tuple([now[n] for n in kept] + ([now[n + len(keys)] for n in kept] if watched.kind == "dict" else []))


def put_back(watched: Watched, then: tuple[Any, ...]) -> str:
    """Let a place hold what it held; its name."""
    kept = watched.values
    watched.values = then
    try:
        place = watched.changed()
        watched.put_back()
    finally:
        watched.values = kept
    return place


def _same(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    return len(now) == len(then) and all(map(is_, now, then))
