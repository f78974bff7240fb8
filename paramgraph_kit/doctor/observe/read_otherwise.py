"""Tensors that one way of a function exchanges and the other reads: ``if i % 4 == 0: last = f(y)``, ``return last``.

Asked with a number that exchanges it, no call reads what another has left; those with other numbers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure

_BY_NAME = ("attribute", "global", "cell", "container")  # a gradient is another matter
_HELD = (dict, list, tuple)


def problems(base: Call, other: Call, own: Callable[[], Call], another: Callable[[], Call]) -> Iterator[Failure]:
    """What the other way reads that the own way has given other memory.

    Args:
        base: a call that has gone the own way.
        other: one that has gone the other way.
        own: makes a call of the own way.
        another: makes one of the other way.
    """
    left_alone = {change.place for change in _exchanged(base)} - {change.place for change in _exchanged(other)}
    if not left_alone:
        return
    first, between, last = another(), own(), another()
    if any(call.ended is not None for call in (first, between, last)):
        return
    changes = [change for change in _exchanged(between) if change.place in left_alone]
    given = _keys(change.after for change in changes)
    read = {key for step in last.steps for key in step.outside} & given
    if not read:
        return
    rest = {key for step in first.steps for key in step.outside} - _keys(change.before for change in changes)
    found = differences(first.steps, last.steps, random_drawn=False, told=rest)
    yield from (f for f in found if f.code == "stale-input" and f.frame is not None)


def _exchanged(call: Call) -> list[Change]:
    """What it has bound to another tensor, or filled with others, by name."""
    changes = [change for change in call.changes if change.kind in _BY_NAME]
    return [c for c in changes if {*map(storage_key, _tensors(c.before))} != {*map(storage_key, _tensors(c.after))}]


def _keys(values: Iterable[Any]) -> set[int]:
    return {key for value in values for t in _tensors(value) if (key := storage_key(t))}


def _tensors(value: Any) -> list[torch.Tensor]:
    """A tensor, or those of a container."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, _HELD) else (value,)
    return [part for part in parts if is_a(part, torch.Tensor)]
