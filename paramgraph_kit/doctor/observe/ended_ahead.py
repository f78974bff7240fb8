"""What is told of a program of own captures that ends in an error: in a capture, or before it comes to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.trace.model import Failure, Frame

FUNCTION = "function"  # the category of what ends a call, captured or not
NOT_REACHED = "it ends before it captures, and what is around its captures runs as ever: ask again once that is mended"
_AROUND_ITS_OWN = ("nested-capture", "work-elsewhere")
_Problems = dict[tuple[str, Frame | None], Failure]


def without_around(
    problems: _Problems, calls: Sequence[Call], codes: Iterable[CodeType], notes: list[str]
) -> _Problems:
    """The same without what only a capture around a program would refuse, which has captures of its own."""
    ends = [call.ended for call in calls if call.ended is not None]
    if ends and not any(call.captures or call.replays for call in calls) and any(map(captured_in, codes)):
        notes.append(NOT_REACHED)
        return {at: f for at, f in problems.items() if f in ends}
    failed = [call.ended for call in calls if call.captures and call.ended is not None]
    if failed := [f for f in failed if BY_ID[f.code].category != FUNCTION]:
        return {at: f for at, f in problems.items() if f.code not in _AROUND_ITS_OWN or f in failed}
    return problems
