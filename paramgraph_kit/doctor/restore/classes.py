"""Whose a class or a module is, and which functions and names it and they are made of."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from paramgraph_kit.driver.files import is_library, is_library_code

_IMMUTABLE, _HEAP = 1 << 8, 1 << 9  # of a type's flags: C's own are immutable, a class statement's are on the heap


def global_names(code: types.CodeType) -> set[str]:
    """Global names that a function and those defined in it use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= global_names(constant)
    return found


def functions_of(kind: type) -> list[types.FunctionType]:
    """The functions that a class is written with: methods, static and class methods, properties."""
    found = []
    for member in vars(kind).values():
        parts = (member.fget, member.fset) if isinstance(member, property) else (getattr(member, "__func__", member),)
        found += [part for part in parts if isinstance(part, types.FunctionType)]
    return found


def defaults_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The values of parameters that are not given, by their names."""
    code, given = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def named(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Arguments with the names that the function gives them."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except Exception:  # it has none, or answers as it likes
        return [("", value) for value in args] + list(kwargs.items())
    return list(bound.items())


def wraps_users(wrapped: Any) -> bool:
    """Whether a function within a library's wrapper is the user's own."""
    function = inspect.unwrap(wrapped) if isinstance(wrapped, types.FunctionType) else None
    return isinstance(function, types.FunctionType) and not is_library_code(function.__code__, function.__globals__)


@cache
def options() -> frozenset[str]:
    """What torch's own modules are made with, and keep: a rate of a dropout, say.

    >>> "p" in options(), "calls" in options()
    (True, False)
    """
    kinds = (kind for kind in vars(torch.nn).values() if isinstance(kind, type))
    codes = (getattr(vars(kind).get("__init__"), "__code__", None) for kind in kinds)
    return frozenset(name for code in codes if code is not None for name in code.co_varnames)


def of_library(kind: type) -> bool:
    """Whether a class is an installed package's, Python's own or ours."""
    files = [f.__code__.co_filename for f in functions_of(kind)]
    if any(not is_library(file) for file in files if not file.startswith("<")):
        return False  # others may be made for it by a library, as those of a dataclass are
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is not None:
        return is_library(file)
    if kind.__module__ == "__main__":
        return False
    return kind.__module__ in sys.builtin_module_names or kind.__flags__ & (_HEAP | _IMMUTABLE) != _HEAP


def is_of_library(module: types.ModuleType) -> bool:
    """Whether a module is an installed package's, Python's own or ours; one without a file counts as such."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), None)  # of a folder
    return not isinstance(file, str) or is_library(file)
