"""What has been compiled in this process, for the report: weakly held, so that a dropped model drops its graphs."""

from __future__ import annotations

import itertools
import sys
import types
import weakref
from dataclasses import dataclass, field

from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.trace.model import Reason

_order = itertools.count()
_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


@dataclass(eq=False)
class CompiledGraph:
    """One compiled FX graph: the launchers of its partitions, and why the rest is not in them."""

    name: str  # "forward 0", "backward 0", "inference 1"
    code: types.CodeType | None  # the user's function that Dynamo compiled
    launchers: list[Launcher] = field(default_factory=list)
    operations: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by launcher name
    reasons: list[Reason] = field(default_factory=list)
    outside: int = 0  # launches of one call that belong to no partition
    order: int = field(default_factory=lambda: next(_order))

    def __post_init__(self) -> None:
        _graphs.add(self)

    def refuse(self, reason: Reason) -> None:
        """Note once why something is not graphed."""
        if reason not in self.reasons:
            self.reasons.append(reason)


def compiled_graphs() -> list[CompiledGraph]:
    """Every compiled graph that is still alive, oldest first."""
    return sorted(_graphs, key=lambda graph: graph.order)


def code_being_compiled() -> types.CodeType | None:
    """The user's function that Dynamo is compiling now, read from Dynamo's own frame."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_code.co_filename.endswith("convert_frame.py"):
            code = frame.f_locals.get("code")
            return code if isinstance(code, types.CodeType) else None
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return None
