"""States that are written in place now, and of which a name of the user's has the memory as well.

``x0 = torch.zeros(3); f = Filter(x0)``: where ``self.x = new`` has become ``self.x.copy_(new)``, ``x0`` moves, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.keeper import storage_key

SHARED = (
    "`{state}` is written in place now, and `{other}` has its memory, too: give the state memory of its own before the "
    "first call, `{state} = {state}.clone()`"
)
_MOST = 256  # entries of what a name has that are looked at
_NOT_THE_USERS = (ModuleType, FunctionType, type, torch.Tensor)


def told_shared(written: Collection[str], holders: Sequence[Holder], space: Mapping[str, Any]) -> list[str]:
    """What to do about states in ``written``, as ``self.x``, whose memory another name of ``space`` has."""
    if not written:
        return []
    ends = {_end(path) for path in written}
    held = {id(each.target) for each in holders if not each.of_torch}
    places = [(path, value, owner) for path, value, owner in _tensors(space) if storage_key(value)]
    states = [(path, value) for path, value, owner in places if _end(path) in ends and owner in (held | {id(space)})]
    found = list[str]()
    for state, value in states:
        others = [
            path
            for path, other, owner in places
            if path != state and storage_key(other) == storage_key(value) and _end(path) not in ends
        ]
        found += [SHARED.format(state=state, other=others[0])] if others else []
    return found


def _end(path: str) -> str:
    """The last part of a path: ``.x`` of ``self.x``, ``['v']`` of ``state["v"]``, and a name as it is."""
    path = path.replace('"', "'")
    at = max(path.rfind("."), path.rfind("["))
    return path[at:] if at >= 0 else path


def _tensors(space: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor, int]]:
    """The tensors that names of the user's have, also in an object, a list or a dictionary, and which has each."""
    for name, value in list(space.items()):
        if isinstance(value, torch.Tensor):
            yield name, value, id(space)
        elif isinstance(value, dict):
            inside = [(f"{name}[{key!r}]", each) for key, each in islice(value.items(), _MOST)]
            yield from ((path, each, id(value)) for path, each in inside if isinstance(each, torch.Tensor))
        elif isinstance(value, (list, tuple)):
            inside = [(f"{name}[{number}]", each) for number, each in enumerate(value[:_MOST])]
            yield from ((path, each, id(value)) for path, each in inside if isinstance(each, torch.Tensor))
        elif not isinstance(value, _NOT_THE_USERS) and hasattr(value, "__dict__"):
            inside = [(f"{name}.{key}", each) for key, each in islice(vars(value).items(), _MOST)]
            yield from ((path, each, id(vars(value))) for path, each in inside if isinstance(each, torch.Tensor))
