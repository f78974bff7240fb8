"""Operations that read another of a call's own tensors than in the next: ``outs[k]``, ``b if late else a``.

Both calls run the same operations, and the memory is the call's: only which tensor it is shows it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.given_to_operations import NO_KERNELS, OUTPUTS
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure, Frame

APART = "read another one of this call's own tensors in the next"  # what a message has then
_PICKS = (ast.Subscript, ast.IfExp)


def problems(pairs: Iterable[tuple[Step, Step]], code: str) -> Iterator[Failure]:
    """One for each two tensors of which an operation read this in one call, and that in the other."""
    known, moved, number = set[object](), set[int](), 0
    for a, b in pairs:
        number += a.name not in NO_KERNELS
        others = [(x, y) for x, y in zip(a.made, b.made, strict=False) if x != y]
        # What a line cuts elsewhere lies elsewhere, and is told where it is cut.
        apart = [(x, y) for x, y in others if x[0] != y[0] or x[0] >> OUTPUTS not in moved]
        if a.values != b.values or a.shapes != b.shapes or len(apart) < len(others):
            moved.add(number)
        if not apart or a.outside != b.outside or a.values != b.values or a.shapes != b.shapes:
            continue  # nearly always; and what is of other sizes or numbers is told as that
        if a.place.in_backward:  # follows from the forward pass
            continue
        if known.isdisjoint(apart):
            yield BY_ID[code].failure(f"{a.name} {APART}", picked_at(a.place))
        known.update(apart)


def returned(first: Call, second: Call, code: CodeType | None) -> Iterator[Failure]:
    """The same of what a function returns, ``return outs[k]``: of two calls that run the same operations."""
    steps = [[step for step in call.steps if step.on_device] for call in (first, second)]
    if first.made == second.made or len(first.made) != len(second.made):
        return
    if [step.key for step in steps[0]] != [step.key for step in steps[1]]:
        return
    alike = all(a.values == b.values for a, b in zip(*steps, strict=True))  # else a slice may begin elsewhere
    if not alike and [maker for maker, *_ in first.made] == [maker for maker, *_ in second.made]:
        return
    ends = [n for n in nodes_of(code) if isinstance(n, ast.Return) and _picks(n)] if code is not None else []
    frame = frame_at(code, ends[-1].lineno) if code is not None and ends else None
    yield BY_ID["stale-input"].failure(f"what it returns {APART}", frame)


def picked_at(place: Place) -> Frame | None:
    """The line that picks what an operation reads: its own, or the last one ahead that gives a name of it something."""
    spot, own = place.user, place.frame()
    if spot is None or own is None:
        return own
    nodes = [n for n in nodes_of(spot[0]) if isinstance(n, ast.stmt) and n.lineno <= own.line]
    read = {n.id for s in nodes if s.lineno == own.line for n in ast.walk(s) if isinstance(n, ast.Name)}
    if any(_picks(s) for s in nodes if s.lineno == own.line):
        return own
    ahead = [s for s in nodes if s.lineno < own.line and isinstance(s, ast.Assign) and _picks(s)]
    given = [s for s in ahead if read & {n.id for t in s.targets for n in ast.walk(t) if isinstance(n, ast.Name)}]
    return frame_at(spot[0], max(s.lineno for s in given)) if given else own


def _picks(node: ast.stmt) -> bool:
    return any(isinstance(n, _PICKS) for n in ast.walk(node))
