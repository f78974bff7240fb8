"""Which functions of the user's have run, where a line may have done something: only one that has can have."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from paramgraph_kit.driver.files import is_library


@contextmanager
def noting(into: set[CodeType], wanted: bool) -> Iterator[None]:
    """Note the functions that are called while this lasts, in this thread; a debugger of the user's goes ahead."""
    if not wanted or sys.gettrace() is not None:
        yield
        return

    def entered(frame: FrameType, event: str, given: Any) -> None:
        into.add(frame.f_code)

    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(None)


def has_run(ran: Collection[CodeType], file: str, line: int) -> bool:
    """Whether a line stands in one of these functions."""
    return any(line in _lines_of(code) for code in ran if code.co_filename == file and not is_library(file))


@cache
def _lines_of(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line is not None)
