"""The objects that a function has, or is given: those that have methods, and what they and their tables hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from inspect import unwrap
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.driver.files import is_library

_DEEP = 3  # objects in objects, and tables in them
_MOST, _MOST_ENTRIES = 512, 64


def reachable(values: Iterable[Any]) -> Iterator[Any]:
    """Each once, those of the values first; only such whose classes are the user's."""
    seen, found = set[int](), 0
    level = [*values]
    for _ in range(_DEEP):
        below = list[Any]()
        for value in level:
            owner: Any = value.__self__ if isinstance(value, MethodType) else value
            if id(owner) in seen or is_a(owner, (type, ModuleType, FunctionType, torch.Tensor)):
                continue
            seen.add(id(owner))
            if type(owner) in (list, tuple, dict):
                held = owner.values() if type(owner) is dict else owner
                below += islice(held, _MOST_ENTRIES)
                continue
            kind: Any = type(owner)
            if not methods_by_user(kind):
                below += islice(getattr(owner, "_modules", {}).values(), _MOST_ENTRIES) if _is_module(owner) else ()
                continue
            if (found := found + 1) > _MOST:
                return
            yield owner
            below += attributes_of(owner).values()
            below += owner._modules.values() if _is_module(owner) else ()
        level = below


def _is_module(value: Any) -> bool:
    return is_a(value, torch.nn.Module)


@lru_cache(1024)
def methods_by_user(kind: type) -> tuple[FunctionType, ...]:
    """The methods of a class that stand in the user's files, without their decorators."""
    held = [each for k in kind.__mro__ for each in vars(k).values() if isinstance(each, FunctionType)]
    plain = [f for f in map(unwrap, held) if isinstance(f, FunctionType)]
    return tuple(f for f in plain if not is_library(f.__code__.co_filename))
