"""Which line of the user's recorded which node, from the events of a profile hook and a count of nodes at each.

Calls have events before and after them, so what they record is theirs. Operators (``x + 1``, ``x[i] = y``) have none:
what they record shows at the next event, and is theirs where the text between leaves no choice, else nobody's.
"""

from __future__ import annotations

import dis
import types
from bisect import bisect_right
from functools import lru_cache

from paramgraph_kit.driver.files import is_library

Line = tuple[str, int]
_SILENT = ("BINARY_", "INPLACE_", "UNARY_", "COMPARE_OP", "STORE_SUBSCR", "STORE_SLICE")


class Recorders:
    """The lines of one capture."""

    def __init__(self) -> None:
        self.count = 0
        self._ends: list[int] = []  # how many nodes there were when a line was done
        self._lines: list[Line | None] = []
        self._at: dict[int, int] = {}  # by id of a frame: the instruction of its last event

    def note(self, frame: types.FrameType, event: str, count: int) -> None:
        """An event of ``sys.setprofile``, at which there are so many nodes."""
        around = frame.f_back if event in ("call", "return") else None
        if count > self.count:
            self._add(around if event == "call" and around is not None else frame, event, count)
        if around is not None:  # it stands at its call
            self._at[id(around)] = around.f_lasti
        if event != "return":
            self._at[id(frame)] = -1 if event == "call" else frame.f_lasti

    def _add(self, frame: types.FrameType, event: str, count: int) -> None:
        user, line = recording(frame)
        found: list[Line | None] = [line] * (count - self.count)
        if user is frame and line is not None and not event.startswith("c_r") and event != "c_exception":
            silent = _between(frame.f_code, self._at.get(id(frame), -1), frame.f_lasti)
            lines = sorted(set(silent))
            if len(silent) == len(found):
                found = [(line[0], each) for each in silent]
            else:
                found = [(line[0], lines[0]) if len(lines) == 1 else None] * len(found)
        for each in found:
            self.count += 1
            if self._lines and self._lines[-1] == each:
                self._ends[-1] = self.count
            else:
                self._ends.append(self.count)
                self._lines.append(each)

    def at(self, position: int) -> Line | None:
        """The line that recorded the node at this position."""
        found = bisect_right(self._ends, position)
        return self._lines[found] if found < len(self._lines) else None


def recording(frame: types.FrameType | None) -> tuple[types.FrameType | None, Line | None]:
    """Code that torch has generated from a graph and that runs now, else the innermost of the user's own."""
    own: tuple[types.FrameType | None, Line | None] = None, None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<eval_with_key>"):
            return frame, (file, frame.f_lineno)
        if own[1] is None and not is_library(file):
            own = frame, (file, frame.f_lineno)
        frame = frame.f_back
    return own


@lru_cache(maxsize=512)
def _operators(code: types.CodeType) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Offsets and lines of a code's operators, and from where to where it jumps back."""
    line, operators, jumps = code.co_firstlineno, list[tuple[int, int]](), list[tuple[int, int]]()
    starts = {start: number for start, _, number in code.co_lines() if number is not None}
    for each in dis.get_instructions(code):
        line = starts.get(each.offset, line)
        if each.opname.startswith(_SILENT):
            operators.append((each.offset, line))
        elif "JUMP" in each.opname and isinstance(each.argval, int) and each.argval < each.offset:
            jumps.append((each.offset, each.argval))
    return operators, jumps


def _between(code: types.CodeType, first: int, last: int) -> list[int]:
    """Lines of the operators that may have run between two instructions, in their order.

    The first may be one itself, in which something was called: an allocator. So may the last, if nothing else is.
    """
    operators, jumps = _operators(code)
    own = [line for offset, line in operators if offset == last]
    if first < last or (first == last and own):
        return [line for offset, line in operators if first <= offset < last] or own
    back = next(((start, end) for start, end in jumps if start > first and end <= last), None)
    if back is None:
        return []
    tail = [line for offset, line in operators if first <= offset < back[0]]
    return tail + [line for offset, line in operators if back[1] <= offset < last]
