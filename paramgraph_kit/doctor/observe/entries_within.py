"""Lists and the like that lie within what a step reads: in another list, or in an object, by whatever way it comes."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

from paramgraph_kit.doctor.observe.captured_entries import is_dict
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.doctor.restore.classes import of_library

_DEEP = 3
_MOST = 512  # objects that are looked at for one


def entries_within(uses: Iterable[Use], holds: Any) -> Use | None:
    """Where a step may read it: a call with other entries tells whether it does."""
    seen: set[int] = set()
    for use in uses:
        if _is_own(use):
            continue
        waiting = [(use.node, use.value(), 0)]
        while waiting and len(seen) < _MOST:
            node, value, deep = waiting.pop(0)
            if value is holds:
                return Use(use.code, node, use.decides, use.names)
            if id(value) in seen or deep > _DEEP:
                continue
            seen.add(id(value))
            waiting += [(ast.copy_location(at, use.node), each, deep + 1) for at, each in _within(node, value)]
    return None


def _is_own(use: Use) -> bool:
    """Whether it is the object itself whose method reads it, which has much that no line reads."""
    first = next(iter(use.code.co_varnames), "")
    return isinstance(use.node, ast.Name) and use.node.id == first and use.code.co_argcount > 0


@lru_cache(maxsize=1024)
def _is_of_users(kind: type) -> bool:
    """Whether an object is one of a class of the user's, which is no module: those have layers, and each its lines."""
    own = kind is SimpleNamespace or not of_library(kind)
    return own and not issubclass(kind, (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, type))


def _within(node: ast.expr, value: Any) -> Iterator[tuple[ast.expr, Any]]:
    if type(value) in (list, tuple, deque):
        pairs: Iterable[tuple[Any, Any]] = enumerate(value)
    elif is_dict(value):
        pairs = ((key, each) for key, each in value.items() if type(key) in (str, int, float, bool))
    else:
        named = attributes_of(value) if _is_of_users(type(value)) else {}  # type: ignore[arg-type]
        yield from ((ast.Attribute(node, name, ast.Load()), each) for name, each in named.items())
        return
    yield from ((ast.Subscript(node, ast.Constant(key), ast.Load()), each) for key, each in pairs)
