"""The functions that have called the one that captures, and what they have names for then."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.driver.files import is_library

_MOST = 4  # functions around a capture


@dataclass(frozen=True, slots=True)
class Caller:
    """One of them."""

    code: CodeType
    line: int
    held: dict[str, Any]  # weak references
    space: dict[str, Any]


def callers_of(frame: FrameType) -> tuple[Caller, ...]:
    """The functions of the user's that have called this one, innermost first."""
    return tuple(islice(_callers(frame.f_back), _MOST))


def _callers(frame: FrameType | None) -> Iterator[Caller]:
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            held = {n: v for n, v in frame.f_locals.items() if not is_a(v, (ModuleType, FunctionType, type))}
            yield Caller(frame.f_code, frame.f_lineno, dict(_weakly(held)), frame.f_globals)
        frame = frame.f_back


def _weakly(held: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in held.items():
        try:
            yield name, weakref.ref(value)
        except TypeError:  # a number, or a tuple
            continue
