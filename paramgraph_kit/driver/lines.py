"""Which line of the user's recorded which node of a captured graph, for as long as the graph lives."""

from __future__ import annotations

import linecache
import sys
import traceback
from bisect import bisect_right
from collections.abc import Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.errors import cause_chain
from paramgraph_kit.trace.model import Frame

Marks = Sequence[tuple[int, Frame | None]]  # (nodes recorded when an operation was done, its line), in order

_marks: WeakKeyDictionary[Any, Marks] = WeakKeyDictionary()


def remember(graph: Any, marks: Marks) -> None:
    """Keep the lines of a capture into ``graph``."""
    _marks[graph] = marks


def frame_at(graph: Any, position: int) -> Frame | None:
    """The line that recorded the node at this position in the order of recording, where that is known.

    >>> class Graph: pass
    >>> graph = Graph()
    >>> remember(graph, [(2, Frame("a.py", 1)), (3, Frame("a.py", 2))])
    >>> [frame.line if (frame := frame_at(graph, n)) else None for n in range(4)]
    [1, 1, 2, None]
    """
    marks = _marks.get(graph, ())
    at = bisect_right(marks, position, key=lambda mark: mark[0])
    return marks[at][1] if at < len(marks) else None


def user_line() -> Frame | None:
    """The innermost line of the user's own that runs now: of this thread, or of the one that waits for its backward."""
    frame = _own(sys._getframe(1))
    if frame is None:  # autograd's thread runs nothing of the user's
        waiting = [top for top in sys._current_frames().values() if top.f_code.co_name == "_engine_run_backward"]
        frame = _own(waiting[0]) if len(waiting) == 1 else None
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Frame(display_name(file), line, frame.f_code.co_name, linecache.getline(file, line).strip())


def _own(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def frame_of_line(file: str, line: int) -> Frame:
    """A line of the user's, with its text."""
    return Frame(display_name(file), line, "", linecache.getline(file, line).strip())


def line_behind(error: BaseException) -> tuple[str, Frame | None]:
    """What began a chain of exceptions: its first line of text, and the innermost line of the user's own."""
    chain = list(cause_chain(error))
    said = next((text for one in reversed(chain) if (text := str(one).strip().splitlines())), [type(error).__name__])
    for one in reversed(chain):
        own = [entry for entry in traceback.extract_tb(one.__traceback__) if not is_library(entry.filename)]
        if own:
            last = own[-1]
            return said[0], Frame(last.filename, last.lineno or 0, last.name, last.line or "")
    return said[0], None
