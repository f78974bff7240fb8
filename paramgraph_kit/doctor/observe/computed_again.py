"""Variables that each call gives what the same line computes, where a graph reads what a call of before was given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.one_graph import OneGraph, bytes_of
from paramgraph_kit.doctor.observe.places import Place, Spot
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref

_MOST, _MOST_BYTES = 1 << 16, 1 << 26


@dataclass(slots=True)  # not frozen: one is made for each operation
class _Made:
    """A tensor that was computed outside of all captures."""

    storage: Any  # a weak reference, which also keeps the key from being given to somebody else
    stack: tuple[Spot, ...]
    of: frozenset[int]  # memory whose numbers it is computed of

    def within(self, code: CodeType) -> tuple[Spot, ...]:
        """Where a function was then, and what that had called."""
        own = [at for at, (each, _) in enumerate(self.stack) if each is code]
        return self.stack[own[-1] :] if own else ()


class ComputedAgain:
    """Those of one examination."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}  # by memory

    def saw(self, name: str, keys: Collection[int], made: list[tuple[int, torch.Tensor]], place: Place) -> None:
        """An operation outside of all captures; ``keys``: the memory of what it was given."""
        if len(self._made) >= _MOST or place.in_backward:
            return
        for key, tensor in made:
            if key and key not in keys:
                of = frozenset() if name.endswith("_like") or name.startswith("new_") else frozenset(keys)
                self._made[key] = _Made(storage_ref(tensor.untyped_storage()), place.stack, of)

    def others(
        self, one: OneGraph, frames: Iterable[FrameType], written: Collection[int], given: Collection[int]
    ) -> Iterator[tuple[str, str]]:
        """Variables of functions that run now, with what they are called where a graph was captured that reads others.

        Args:
            one: the graph.
            frames: functions that run now.
            written: memory that something has written to since then, as a copy of what is new does.
            given: memory of what the call was given; what is computed of that is another one in each call.
        """
        known = {0, *written}
        for frame in frames:
            for name, key in one.held.get(frame.f_code, {}).items():
                now = frame.f_locals.get(name)
                if key in known or key not in one.reads or not is_a(now, torch.Tensor) or storage_key(now) in (0, key):
                    continue
                is_other = self._depends(storage_key(now), given) or _differs(one.reads[key][0], now)
                if is_other and self._is_same_line(frame.f_code, key, storage_key(now)):
                    known.add(key)
                    yield name, one.called.get(key, name)

    def _is_same_line(self, code: CodeType, *keys: int) -> bool:
        """Whether all were made by the same line of a function, or by what that calls."""
        made = {self._made[key].within(code) if key in self._made else () for key in keys}
        return len(made) == 1 and () not in made

    def _depends(self, key: int, given: Collection[int]) -> bool:
        """Whether a tensor is computed of what the call was given."""
        waiting, seen = [key], {key}
        for each in waiting:  # it grows
            of = self._made[each].of - seen if each in self._made else ()
            waiting += of
            seen.update(of)
        return not seen.isdisjoint(given)


def _differs(read: Any, now: torch.Tensor) -> bool:
    """Whether a tensor has other numbers than what a graph reads, as far as that is there."""
    if (then := bytes_of(read)) is None:
        return True  # nobody has kept it
    own = now.untyped_storage()
    if then.numel() != own.nbytes() or own.nbytes() > _MOST_BYTES:
        return False
    return not torch.equal(then, torch.empty(0, dtype=torch.uint8, device=now.device).set_(own))
