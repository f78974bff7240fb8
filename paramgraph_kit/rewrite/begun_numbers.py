"""Numbers that rewritten lines turn into tensors in the first call: a program's own capture may be that call.

``self.time += dt`` of a ``dt`` that stays on the device makes a tensor of ``self.time = 0.0``, and adds to it in place
from the second call on. A capture in the first call has the making of it, and each replay begins with 0.0 again. So
the number is a tensor where it is made, or the rewriting is not whole.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from paramgraph_kit.rewrite.ahead import Ahead
from paramgraph_kit.rewrite.conditions import Lent
from paramgraph_kit.rewrite.counting.advance import Kept, edits_of, is_writing
from paramgraph_kit.rewrite.counting.counted import Counter, counters
from paramgraph_kit.rewrite.proving.deadline import RAISES
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of
from paramgraph_kit.trace.model import Failure

BEGINS = (
    "make `{path}` a tensor where it is made, `{path} = torch.tensor({value}, device={device})`, and write it in "
    "place: the capture is the first call, and would keep the number that is there then"
)


def begun_inside(attempt: Ahead, lines: Lent) -> list[Counter]:
    """Numbers that a first call makes tensors of, and reads before that."""
    moved = counters(attempt.prover)
    if not moved:
        return []
    try:
        with lines.applied():
            columns = attempt.prover.from_now().watched()
    except RAISES:
        return []  # who knows why not now
    made = set[tuple[int, str]]()
    for holder, values in columns:
        parts = [({holder.name: v} if holder.kind in ("global", "cell") else v) for v in (values[0], values[-1])]
        if all(isinstance(part, dict) for part in parts):
            first, last = parts
            made |= {
                (id(holder.target), name)
                for name, value in first.items()
                if type(value) in (int, float) and isinstance(last.get(name), torch.Tensor)
            }
    found = [each for each in moved if (id(each.holder.target), each.name) in made]
    ran = [node for source in attempt.sources.values() for node in _functions(source, attempt)]
    return [each for each in found if any(_reads_first(function, each) for function in ran)]


def begin_in_tensors(attempt: Ahead, found: Sequence[Counter], failures: Sequence[Failure]) -> Kept | None:
    """The same numbers in tensors from where they are made on; None where that is nowhere, or in several places."""
    for source in attempt.sources.values():
        bodies = [part for function in _functions(source, attempt) for part in function.body]
        nodes = [n for part in bodies for n in ast.walk(part) if isinstance(n, ast.stmt)]
        if not all(any(is_writing(n, [each]) for n in nodes) for each in found):
            continue
        edits = edits_of(source, found, attempt.device_in(source), bodies, attempt.tensors)
        if edits is None:
            return None
        at = [(f, place) for f in failures if f.code == "host-counter" and (place := attempt.place(f)) is not None]
        return Kept(source, [*found], edits, [f for f, (_, node) in at if is_writing(node, found)], False)
    return None


def is_written_at(attempt: Ahead, failure: Failure, found: Sequence[Counter]) -> bool:
    """Whether a failure is told at a line that gives one of these numbers another value."""
    return (at := attempt.place(failure)) is not None and is_writing(at[1], found)


def in_words(attempt: Ahead, found: Sequence[Counter]) -> list[str]:
    """What to do where nobody knows where these numbers are made."""
    told = []
    for each in found:
        nodes = (n for source in attempt.sources.values() for n in ast.walk(source.tree))
        path = next((path_of(n) for n in nodes if isinstance(n, ast.expr) and each.is_at(n)), each.name)
        told.append(BEGINS.format(path=path or each.name, value=each.value, device=attempt.device))
    return told


def _functions(source: Source, attempt: Ahead) -> list[Function]:
    """Those of a file that a step has run."""
    names = {code.co_name for code in attempt.ran if code.co_filename == source.file}
    return [n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name in names]


def _reads_first(function: Function, counter: Counter) -> bool:
    """Whether a function reads a number before it has given it another value."""
    for statement in function.body:
        parts = [n for n in ast.walk(statement) if isinstance(n, ast.expr) and counter.is_at(n)]
        added = any(isinstance(n, ast.AugAssign) and counter.is_at(n.target) for n in ast.walk(statement))
        if added or any(isinstance(getattr(n, "ctx", None), ast.Load) for n in parts):
            return True
        if isinstance(statement, ast.Assign) and is_writing(statement, [counter]):
            return False
    return False
