"""Which line that ran eager inside a compiled call has made a node of the backward pass.

Autograd numbers the nodes of a thread as they are made, and each operation, and each launch, can ask for the latest
number. So a node belongs to the first of them that came with it or after it: also that of a view, which has no kernel
of its own going forward.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Any

from paramgraph_kit.driver.torch_names import torch_name

Line = tuple[str, int]  # the name that Python gives a file, and a line of it
COMPILED = ("", 0)  # in the place of a line: what is compiled has made it
MOST_KEPT = 200_000  # marks of a thread: a backward pass follows its forward pass soon

_latest, _node = torch_name("_get_sequence_nr"), torch_name("_current_autograd_node")
_OF_TORCH = {"traceback_", "parent_"}  # what anomaly detection notes of a node
_OF_COMPILED = ("CompiledFunctionBackward", "DirectBackward")  # of torch, and ours


def is_backward() -> bool:
    """Whether this thread runs a node of a backward pass."""
    return _node() is not None


class BackwardLines:
    """Marks of the forward passes of one watch."""

    def __init__(self) -> None:
        self._marks: dict[int, list[tuple[int, Line | None]]] = {}

    def mark(self, line: Line | None) -> None:
        """An operation has run at a line inside a compiled call, or, for None, anywhere else."""
        marks = self._marks.setdefault(threading.get_ident(), [])
        marks.append((_latest() - 1, line))
        if len(marks) > MOST_KEPT:
            del marks[: MOST_KEPT // 2]

    def line(self) -> Line | None:
        """The line whose backward runs now; ``COMPILED`` for what is compiled, None for all that is neither."""
        node: Any = _node()
        # Nodes of a backward pass have been made on its own thread, which counts for itself; those are marked.
        if node is None or len(self._marks) != 1 or hasattr(node, "variable") or set(node.metadata) - _OF_TORCH:
            return None
        if node.name() in _OF_COMPILED:
            return COMPILED
        (marks,) = self._marks.values()
        at = bisect_left(marks, node._sequence_nr(), key=lambda mark: mark[0])
        return marks[at][1] if at < len(marks) else None
