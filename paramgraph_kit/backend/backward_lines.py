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
        self._gradients: dict[int, Line] = {}  # by the id of a parameter: whose backward its gradient comes of
        self._known: tuple[str, int] = "", -1  # the node whose parameters were noted last

    @property
    def is_shared(self) -> bool:
        """Whether several threads have run forwards: each numbers nodes for itself, and nodes do not know theirs."""
        return len(self._marks) > 1

    def mark(self, line: Line | None) -> None:
        """An operation has run at a line inside a compiled call, or, for None, anywhere else."""
        marks = self._marks.setdefault(threading.get_ident(), [])
        marks.append((_latest() - 1, line))
        if len(marks) > MOST_KEPT:
            del marks[: MOST_KEPT // 2]

    def line(self) -> Line | None:
        """The line whose backward runs now; ``COMPILED`` for what is compiled, None for all that is neither.

        A gradient that is added to the one that its parameter has already is of the line that it comes of.
        """
        node: Any = _node()
        # Nodes of a backward pass have been made on its own thread, which counts for itself; those are marked.
        if node is None or self.is_shared or not self._marks or set(node.metadata) - _OF_TORCH:
            return None
        if hasattr(node, "variable"):
            return self._gradients.get(id(node.variable))
        found: Line | None = COMPILED
        if node.name() not in _OF_COMPILED:
            (marks,) = self._marks.values()
            at = bisect_left(marks, node._sequence_nr(), key=lambda mark: mark[0])
            found = marks[at][1] if at < len(marks) else None
        if self._known != (known := (node.name(), node._sequence_nr())):
            self._known = known
            for behind, _ in node.next_functions:
                if hasattr(behind, "variable"):
                    self._gradients.pop(id(behind.variable), None)
                    if found is not None:
                        self._gradients[id(behind.variable)] = found
        return found
