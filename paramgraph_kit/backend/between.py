"""What runs eager while a compiled function is called: at a graph break, or because Dynamo left a whole frame alone."""

from __future__ import annotations

import os
import types
from collections import Counter
from collections.abc import Iterable

from paramgraph_kit.backend.graphs_of_model import breaks_so_far, broken_at, graph_breaks
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.backend.running import is_compiled_call
from paramgraph_kit.driver.files import OURS, is_generated, is_library
from paramgraph_kit.driver.lines import frame_of_line
from paramgraph_kit.trace.model import EAGER, Frame, Partition, Reason

# Who runs what is compiled: kernels below it belong to a partition, or stand outside of one in the compiled code.
_OF_CODE = (os.path.join(OURS, "launch"), os.path.join(OURS, "backend"))
_OF_CALLS = os.path.join(OURS, "backend", "frozen")  # which hands a call on, be it compiled or not
_MOST_NAMED = 4  # operations of one line


Line = tuple[str, int]  # the name that Python gives a file, and a line of it


class Between:
    """Operations by the line that ran them, while somebody watches."""

    def __init__(self) -> None:
        self.ran: dict[Line | None, Counter[str]] = {}
        self._breaks = breaks_so_far()

    def tell(self, operation: str, frame: types.FrameType) -> None:
        """An operation has launched something by itself, called from there."""
        between, line = _place(frame)
        if between:
            self.ran.setdefault(line, Counter())[operation] += 1

    def partitions(self, graphs: Iterable[CompiledGraph], number: int) -> list[Partition]:
        """Each line that runs eager between compiled parts, numbered from ``number`` on, as far as one can know."""
        reasons = {_where(reason.frame): reason for reason in graph_breaks(None)}
        frames = {line: frame_of_line(*line) if line is not None else None for line in self.ran}
        counts = {_where(frame): self.ran[line] for line, frame in frames.items()}
        new = [reason.frame for reason in graph_breaks(None, since=self._breaks)]
        broken = [frame for graph in graphs if (frame := broken_at(graph)) is not None]
        found: list[Partition] = []
        for where, frame in {_where(frame): frame for frame in (*frames.values(), *broken, *new)}.items():
            ran, reason = counts.get(where, Counter[str]()), reasons.get(where)
            says = [_counted(ran)] if ran else []
            says += [reason.message] if reason is not None else ["graph break"] if not ran else []
            why = Reason("graph-break", "; ".join(says), reason.frame if reason is not None else frame)
            found.append(Partition(number + len(found), EAGER, False, tuple(ran), 0, (why,)))
        return found


def _counted(ran: Counter[str]) -> str:
    names = [f"{name} x{n:,}" if n > 1 else name for name, n in ran.most_common(_MOST_NAMED)]
    more = [f"{len(ran) - _MOST_NAMED} more"] if len(ran) > _MOST_NAMED else []
    count = f"{ran.total():,} operation{'' if ran.total() == 1 else 's'}"
    return f"{count} ran here in no graph: {', '.join([*names, *more])}"


def _where(frame: Frame | None) -> Line | None:
    return None if frame is None else (frame.file, frame.line)


def _place(frame: types.FrameType | None) -> tuple[bool, Line | None]:
    """Whether an operation runs inside a compiled function's call but not in its compiled code, and the user's line."""
    line: Line | None = None
    inside = False
    while frame is not None and not (inside and line is not None):
        file = frame.f_code.co_filename
        ours = file.startswith(_OF_CODE) and not file.startswith(_OF_CALLS)
        if not inside and (ours or is_generated(file) or file.startswith("<eval_with_key>")):
            return False, None
        inside = inside or is_compiled_call(frame.f_code)
        if line is None and not is_library(file):
            line = file, frame.f_lineno
        frame = frame.f_back
    return inside, line
