"""Which functions of the user's have run, where a line may have done something: only one that has can have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import CodeType, FrameType
from typing import Any

from paramgraph_kit.driver.files import is_library

_noting: list[Any] = []  # what notes them just now


@contextmanager
def noting(into: set[CodeType], wanted: bool) -> Iterator[None]:
    """Note the functions that are called while this lasts, in this thread; a debugger of the user's goes ahead."""
    if not wanted or sys.gettrace() is not None:
        yield
        return

    add = into.add

    def entered(frame: FrameType, event: str, given: Any) -> None:
        add(frame.f_code)

    _noting.append(entered)
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(None)
        _noting.remove(entered)


def unnoted(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """A mode's ``__torch_dispatch__``, of whose own functions none is noted: torch's operations run none of the user's.

    To look at an operation takes hundreds of calls, and each line of these would be asked whether it is traced.
    """

    @wraps(dispatch)
    def handled(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tracer = sys.gettrace()
        if tracer is None or types or getattr(func, "namespace", "") != "aten" or tracer not in _noting:
            return dispatch(mode, func, types, args, kwargs)  # a class of tensors may be the user's, as an operation
        sys.settrace(None)
        try:
            return dispatch(mode, func, types, args, kwargs)
        finally:
            sys.settrace(tracer)

    return handled


def has_run(ran: Collection[CodeType], file: str, line: int) -> bool:
    """Whether a line stands in one of these functions."""
    return any(line in _lines_of(code) for code in ran if code.co_filename == file and not is_library(file))


@cache
def _lines_of(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line is not None)
