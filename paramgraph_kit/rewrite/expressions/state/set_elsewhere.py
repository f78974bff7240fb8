"""Attributes that several lines of a step give another tensor, read by a line that sets none: all write in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from paramgraph_kit.rewrite.expressions.calls import write_in_place
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, within
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.trace.model import Failure

_ANOTHER = re.compile(r" gets another at ([^\n]+?):(\d+) ")


def write_where_it_is_set(place: Place) -> list[Edit]:
    """``return x + sin(x)`` of an ensemble that ``forecast`` and ``analyse`` set in turn: ``self.ens.copy_(...)``."""
    found = list[Edit]()
    for node in lines_that_set(place.source, place.failure, place.entry):
        if not (edits := write_in_place(replace(place, statement=node))):
            return []
        found += [edit for edit in edits if edit not in found]
    return found


def lines_that_set(source: Source, failure: Failure, entry: str) -> list[ast.Assign]:
    """The line that a failure names as giving a name another tensor, with the others of the step that do."""
    known, frame = _ANOTHER.search(failure.message), failure.frame
    if known is None or frame is None or known[1] != frame.file:
        return []
    every = [n for n in ast.walk(source.tree) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    named = next((n for n in every if n.lineno == int(known[2]) and _is_one(n.targets[0])), None)
    if named is None:
        return []
    path, run = ast.unparse(named.targets[0]), {*_run_by(source, entry)}
    others = [n for n in every if ast.unparse(n.targets[0]) == path and source.function_of(n) in run]
    return sorted({named, *others} if isinstance(named.targets[0], ast.Attribute) else {named}, key=lambda n: n.lineno)


def _is_one(target: ast.expr) -> bool:
    return isinstance(target, (ast.Name, ast.Attribute))


def _run_by(source: Source, entry: str) -> Iterator[Function]:
    """The functions of a file that one of them comes to, as their names tell."""
    every = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    waiting, seen = [entry], set[str]()
    while waiting:
        name = waiting.pop()
        for function in (f for f in every if f.name == name and name not in seen):
            yield function
            calls = (n for part in function.body for n in within(part) if isinstance(n, ast.Call))
            waiting += [called(n) for n in calls]
        seen.add(name)
