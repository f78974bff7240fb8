"""Numbers within arguments: entries of dictionaries and lists, fields of objects, and numpy's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.restore.classes import of_library

_DEEP = 3
_MOST = 64  # entries of one container
_PLAIN = (bool, int, float, str, type(None), tuple, list, dict)
_KINDS = {"b": bool, "i": int, "u": int, "f": float}  # of numpy's


@dataclass(frozen=True, slots=True)
class Inner:
    """A number of an argument: ``["scale"]`` of it, ``.temp``, or "" where it is one itself."""

    path: str
    value: Any
    kind: type  # bool, int or float
    of: type | None  # the class of the object that has it, where it is no container


def numbers_within(value: Any, path: str = "", of: type | None = None, deep: int = _DEEP) -> Iterator[Inner]:
    """All of them, in their order."""
    if (kind := _kind(value)) is not None:
        yield Inner(path, value, kind, of)
    elif deep:
        for key, each, owner in parts_of(value):
            yield from numbers_within(each, path + key, owner or of, deep - 1)


def with_others_within(value: Any, another: Callable[[str, Any], Any], path: str = "", deep: int = _DEEP) -> Any:
    """The same with other numbers, in containers of its own; itself where ``another`` gives none."""
    if _kind(value) is not None:
        return another(path, value)
    parts = [(key, with_others_within(e, another, path + key, deep - 1), e) for key, e, _ in parts_of(value) if deep]
    return with_parts(value, parts)


def with_parts(value: Any, parts: list[tuple[str, Any, Any]]) -> Any:
    """What has these parts now, each with its key and what was there; itself where all are the same."""
    if all(new is old for _, new, old in parts):
        return value
    kind = type(value)
    if kind is dict:
        return dict(zip(value, (new for _, new, _ in parts), strict=True))
    if issubclass(kind, tuple):
        news = (new for _, new, _ in parts)
        return kind._make(news) if hasattr(kind, "_make") else tuple(news)
    if kind is list:
        return [new for _, new, _ in parts]
    made = copy.copy(value)
    for key, new, old in parts:
        if new is not old:
            object.__setattr__(made, key[1:], new)
    return made


def _kind(value: Any) -> type | None:
    kind = type(value)
    if kind in (bool, int, float):
        return kind
    is_numpys = kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "dtype")
    return _KINDS.get(value.dtype.kind) if is_numpys and value.shape == () else None


def parts_of(value: Any) -> list[tuple[str, Any, type | None]]:
    """What a container or an object of the user's has, each with how it is written; nothing of anything else."""
    kind = type(value)
    parts: list[tuple[str, Any, type | None]]
    if kind is dict:
        parts = [(f"[{key!r}]", each, None) for key, each in value.items()]
    elif kind is list or (issubclass(kind, tuple) and (kind is tuple or hasattr(kind, "_make"))):
        names = getattr(kind, "_fields", None)
        of = kind if names else None
        parts = [(f".{names[i]}" if names else f"[{i}]", each, of) for i, each in enumerate(value)]
    else:
        held = _held(value)
        plain = all(type(each) in _PLAIN or is_a(each, torch.Tensor) or _kind(each) for each in held.values())
        parts = [(f".{name}", each, kind) for name, each in held.items()] if plain else []
    return parts if len(parts) <= _MOST else []


def _held(value: Any) -> dict[str, Any]:
    """The fields of an object of the user's that is nothing of torch's."""
    kind = type(value)
    if issubclass(kind, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type)) or callable(value):
        return {}
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name, None) for name in kind.__dataclass_fields__}
    return attributes_of(value) if kind is SimpleNamespace or not of_library(kind) else {}
