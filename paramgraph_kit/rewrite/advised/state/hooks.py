"""Advice for hooks that each step registers once more, and that nothing removes."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import LOOPS
from paramgraph_kit.rewrite.source.edits import within
from paramgraph_kit.rewrite.source.place import Place, called

_CODES = ("branch-frozen", "host-counter")


def registered_once(place: Place) -> str:
    """``self.net.register_forward_hook(double)`` in a step."""
    if place.failure.code not in _CODES:
        return ""
    calls = [n for n in within(place.statement) if isinstance(n, ast.Call)]
    call = next((n for n in calls if called(n).startswith("register_") and called(n).endswith("hook")), None)
    if call is None:
        return ""
    looped = any(isinstance(each, LOOPS) for each in place.source.above(place.statement))
    what = f"line {place.statement.lineno}, with the loop around it," if looped else f"`{place.text(call)}`"
    return (
        f"{what} belongs once ahead of the capture, and no more in the step: here each call adds one more hook, and a "
        "graph has those of its capture"
    )
