"""What runs eager while a compiled function is called: at a graph break, or because Dynamo left a whole frame alone.

And what runs for it in a backward pass, between what is compiled there.
"""

from __future__ import annotations

import os
import types
from collections import Counter
from collections.abc import Iterable

from paramgraph_kit.backend.backward_lines import COMPILED, BackwardLines, Line, is_backward
from paramgraph_kit.backend.graphs_of_model import break_before, breaks_so_far, broken_at, graph_breaks
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.backend.running import is_compiled_call
from paramgraph_kit.driver.files import OURS, is_generated, is_library
from paramgraph_kit.driver.lines import frame_of_line
from paramgraph_kit.trace.model import EAGER, Frame, Partition, Reason

# Who runs what is compiled: kernels below it belong to a partition, or stand outside of one in the compiled code.
_OF_CODE = (os.path.join(OURS, "launch"), os.path.join(OURS, "backend"))
_OF_CALLS = os.path.join(OURS, "backend", "frozen")  # which hands a call on, be it compiled or not
_OF_STEPS = os.path.join(OURS, "step")
_MOST_NAMED = 4  # operations of one line
_BEHIND = "of its backward pass ran in no graph"
_ADDED = "of autograd's own ran in no graph, on gradients that come out of compiled parts"
_UNKNOWN = "not counted: operations of backward passes, as several threads have run forwards ({names})"


class Between:
    """Operations by the line that ran them, while somebody watches."""

    def __init__(self) -> None:
        self.ran: dict[Line | None, Counter[str]] = {}
        self.behind: dict[Line | None, Counter[str]] = {}  # the same of their backward
        self.unknown: Counter[str] = Counter()  # those of which nobody can say whose they are
        self._breaks = breaks_so_far()
        self._lines = BackwardLines()
        self._in_a_step = False  # the last call of what is compiled

    def tell(self, operation: str, frame: types.FrameType) -> None:
        """An operation has launched something by itself, called from there."""
        compiled, between, line = _place(frame)
        if between:
            self.ran.setdefault(line, Counter())[operation] += 1
        elif not compiled and (made_at := self._lines.line()) is not None:
            if made_at != COMPILED:
                self.behind.setdefault(made_at, Counter())[operation] += 1
            elif not self._in_a_step and _of_the_engine(frame):
                self.behind.setdefault(None, Counter())[operation] += 1
        elif is_backward() and self._lines.is_shared and not compiled:
            self.unknown[operation] += 1
        if is_backward():
            self._lines.line()  # to know which gradients come of what is compiled
        else:
            self._in_a_step = _in_a_step(frame) if compiled else self._in_a_step
            self._lines.mark(line if between else _broken_behind(frame) if compiled else None)

    def launched(self, frame: types.FrameType) -> None:
        """A graph of what is compiled is launched, called from there."""
        if is_backward():
            self._lines.line()
        else:
            self._in_a_step = _in_a_step(frame)
            self._lines.mark(_broken_behind(frame))

    def partitions(self, graphs: Iterable[CompiledGraph], number: int) -> list[Partition]:
        """Each line that runs eager between compiled parts, numbered from ``number`` on, as far as one can know."""
        reasons = {_where(reason.frame): reason for reason in graph_breaks(None)}
        lines = dict.fromkeys((*self.ran, *self.behind))
        frames = {line: frame_of_line(*line) if line is not None else None for line in lines}
        shown = {_where(frame): line for line, frame in frames.items()}
        new = [reason.frame for reason in graph_breaks(None, since=self._breaks)]
        broken = [frame for graph in graphs if (frame := broken_at(graph)) is not None]
        found: list[Partition] = []
        for where, frame in {_where(frame): frame for frame in (*frames.values(), *broken, *new)}.items():
            line, reason = shown.get(where), reasons.get(where)
            known = (self.ran, self.behind) if where in shown else ({}, {})
            ran, behind = (each.get(line, Counter[str]()) for each in known)
            says = [_counted(ran, "ran here in no graph")] if ran else []
            says += [_counted(behind, _BEHIND if line is not None else _ADDED)] if behind else []
            says += [reason.message] if reason is not None else ["graph break"] if not says else []
            text, at = "; ".join(says), reason.frame if reason is not None else frame
            added = behind and not ran and line is None
            why = Reason("gradients-added", text, at) if added else Reason("graph-break", text, at)
            operations = tuple(dict.fromkeys((*ran, *behind)))
            found.append(Partition(number + len(found), EAGER, False, operations, 0, (why,)))
        if self.unknown:
            why = Reason("gradients-added", _UNKNOWN.format(names=_named(self.unknown)))
            found.append(Partition(number + len(found), EAGER, False, (*self.unknown,), 0, (why,)))
        return found


def _counted(ran: Counter[str], how: str) -> str:
    count = f"{ran.total():,} operation{'' if ran.total() == 1 else 's'}"
    return f"{count} {how}: {_named(ran)}"


def _named(ran: Counter[str]) -> str:
    names = [f"{name} x{n:,}" if n > 1 else name for name, n in ran.most_common(_MOST_NAMED)]
    return ", ".join([*names, *([f"{len(ran) - _MOST_NAMED} more"] if len(ran) > _MOST_NAMED else [])])


def _where(frame: Frame | None) -> Line | None:
    return None if frame is None else (frame.file, frame.line)


def _place(frame: types.FrameType | None) -> tuple[bool, bool, Line | None]:
    """Whether an operation is one of compiled code, or else runs inside a compiled call, and the user's line."""
    line: Line | None = None
    inside = False
    while frame is not None and not (inside and line is not None):
        file = frame.f_code.co_filename
        ours = file.startswith(_OF_CODE) and not file.startswith(_OF_CALLS)
        if not inside and (ours or is_generated(file) or file.startswith("<eval_with_key>")):
            return True, False, None
        inside = inside or is_compiled_call(frame.f_code)
        if line is None and not is_library(file):
            line = file, frame.f_lineno
        frame = frame.f_back
    return False, inside, line


def _of_the_engine(frame: types.FrameType | None) -> bool:
    """Whether autograd itself runs an operation, and no Python of a node's, which may prepare what it is given."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if not frame.f_code.co_filename.startswith(OURS):
            return False
        frame = frame.f_back
    return True


def _in_a_step(frame: types.FrameType | None) -> bool:
    """Whether a step that is captured whole calls: its first calls run as they are, and the others are one graph."""
    while frame is not None and not frame.f_code.co_filename.startswith(_OF_STEPS):
        frame = frame.f_back
    return frame is not None


def _broken_behind(frame: types.FrameType | None) -> Line | None:
    """The line of the graph break behind which compiled code goes on; None where it begins with its function."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else break_before(frame.f_code)
