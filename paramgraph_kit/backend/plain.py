"""Values that code reads as they are: part of a trace's key, and constants in its graphs."""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from operator import is_
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.raw import KINDS, items_of

PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.Size,
         enum.Enum)  # fmt: skip
_BARE = frozenset((int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format,
                   torch.Size))  # fmt: skip
_CONTAINERS = frozenset((*KINDS, defaultdict))  # of which nobody sets attributes
_DEEP = 8
_LONG = 1024


def is_bare(value: Any) -> bool:
    """Whether a value is plain, and nothing can be written on it: a member of an enumeration has attributes.

    >>> is_bare(1.0), is_bare(enum.Enum("Mode", "ONE").ONE)
    (True, False)
    """
    kind = type(value)
    return kind in _BARE or (isinstance(value, PLAIN) and not hasattr(value, "__dict__"))


def is_table(value: Any) -> bool:
    """Whether a value is a dict of plain values, as tables of settings are.

    >>> is_table({"dpi": 80}), is_table({"dpi": [80]}), is_table([80])
    (True, False, False)
    """
    return (
        isinstance(value, dict) and len(value) <= _LONG and all(isinstance(part, PLAIN) for _, part in items_of(value))
    )


def plain_key(value: Any) -> Any:
    """A plain value in a key: 0.0 is not -0.0, 1 is not True, and a NaN is found again.

    >>> plain_key(1) == plain_key(True), plain_key(0.0) == plain_key(-0.0)
    (False, False)
    """
    if isinstance(value, float):
        return type(value), value.hex()
    return type(value), repr(value) if isinstance(value, complex) else value


def flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Leaves and structure; a shape is a plain value, and no tuple of numbers.

    >>> flatten([torch.Size((2, 3)), (1,)])[0]
    [torch.Size([2, 3]), 1]
    """
    return pytree.tree_flatten(tree, is_leaf=_is_size)


def _is_size(tree: Any) -> bool:
    return type(tree) is torch.Size


def _alike(a: Any, b: Any, depth: int) -> bool:
    """Whether two containers of somebody's own class have the same attributes; they are read as they lie."""
    if any(vars(kind).get("__slots__") for kind in type(a).__mro__ if kind not in _CONTAINERS):
        return False  # slots are not looked into
    try:
        ours, theirs = object.__getattribute__(a, "__dict__"), object.__getattribute__(b, "__dict__")
    except AttributeError:  # a named tuple
        return True
    return same(ours, theirs, depth + 1)


def _same_items(a: Any, b: Any, depth: int) -> bool:
    ours, theirs = items_of(a), items_of(b)
    return len(ours) == len(theirs) and all(
        (x is y or same(x, y, depth + 1)) and (k is m or same(k, m, depth + 1))
        for (k, x), (m, y) in zip(ours, theirs, strict=True)
    )


def same(a: Any, b: Any, depth: int = 0) -> bool:
    """Identity for tensors and objects, value for plain values, and for containers that of their parts.

    >>> same([1, (2.0, None)], [1, (2.0, None)]), same(0.0, -0.0), same({1}, {True})
    (True, False, False)
    """
    if a is b:
        return True
    if type(a) is not type(b) or depth > _DEEP:
        return False
    if isinstance(a, (float, complex)):
        # Of nan and the sign of zero too.
        return repr(a) == repr(b) and (is_bare(a) or same(vars(a), vars(b), depth + 1))
    if isinstance(a, PLAIN):
        return bool(a == b) and (is_bare(a) or (not isinstance(a, enum.Enum) and same(vars(a), vars(b), depth + 1)))
    if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
        return False
    if isinstance(a, deque) and a.maxlen != b.maxlen:
        return False
    if type(a) not in _CONTAINERS and isinstance(a, KINDS):
        return _alike(a, b, depth) and _same_items(a, b, depth)
    if isinstance(a, dict):
        if len(a) != len(b):
            return False
        if all(map(is_, a, b)) and all(map(is_, a.values(), b.values())):
            return True  # nearly always, and at the speed of C
        return same(list(a), list(b), depth + 1) and same(list(a.values()), list(b.values()), depth + 1)
    if isinstance(a, (list, tuple, deque, set, frozenset)):  # code may go through a set too, in its order
        if len(a) != len(b):
            return False
        return all(map(is_, a, b)) or all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    return False
