"""State that no attribute and no container shows: memory of C's, the environment, what lines set on a library's own."""

from __future__ import annotations

import ctypes
import dis
import io
import os
import types
import weakref
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from paramgraph_kit.doctor.number_kinds import AMOUNTS
from paramgraph_kit.doctor.restore.holder import Holder, end_of, is_array
from paramgraph_kit.doctor.restore.repeated import Repeated
from paramgraph_kit.driver.host_random import is_of_host

_SHARED = "multiprocessing.sharedctypes"
_OF_C = (ctypes._SimpleCData, ctypes.Structure)


def kind_of(value: Any) -> str:
    """The kind of holder that a value is by itself; "" for what has attributes, or leads to others."""
    if is_array(value):
        return "array"
    if isinstance(value, Repeated):
        return "iterator"
    if is_of_host(value):
        return "generator"
    if isinstance(value, io.IOBase):
        return "file" if end_of(value) is not None else ""
    if isinstance(value, _OF_C):
        return "memory"
    return "environment" if value is os.environ else ""


def leads_to(value: Any) -> Any:
    """What a reference, a view of memory, or a lock around it, stands for; None for anything else."""
    kind = type(value)
    if issubclass(kind, weakref.ref):
        return value()
    if kind in weakref.ProxyTypes:
        return getattr(value.__init__, "__self__", None)
    if kind is memoryview:
        return value.obj
    return value.get_obj() if kind.__module__ == _SHARED and hasattr(kind, "get_obj") else None


@cache
def stored_names(code: types.CodeType) -> frozenset[str]:
    """Names of the attributes that a function sets, and those defined in it."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(found.union(*map(stored_names, inner)))


def set_on_libraries(attributes: dict[str, Any], stored: Collection[str]) -> Iterator[Holder]:
    """The numbers and texts that lines of the user's set on what is a library's: ``sys.steps += 1``."""
    for name in sorted(attributes.keys() & set(stored)):
        if type(attributes[name]) in (*AMOUNTS, str):
            yield Holder("global", name, attributes)
