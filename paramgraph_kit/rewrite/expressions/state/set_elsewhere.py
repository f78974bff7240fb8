"""Attributes that several lines of a step give another tensor, read by a line that sets none: all write in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from paramgraph_kit.doctor.observe.other_ways import BEHIND
from paramgraph_kit.rewrite.expressions.calls import write_in_place
from paramgraph_kit.rewrite.expressions.state.begins import MAKERS, is_none
from paramgraph_kit.rewrite.source.ahead_of import is_sized
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, heads, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.trace.model import Failure

_ANOTHER = re.compile(r"(\S+) gets another at ([^\n]+?):(\d+) ")


def write_where_it_is_set(place: Place) -> list[Edit]:
    """``return x + sin(x)`` of an ensemble that ``forecast`` and ``analyse`` set in turn: ``self.ens.copy_(...)``."""
    return _written(place, lines_that_set(place.source, place.failure, place.entry))


def write_where_branches_set(place: Place) -> list[Edit]:
    """``if n % 20 == 0: self.rebuild()`` ahead of what reads ``self.near``, which ``rebuild`` gives another tensor."""
    return _written(place, lines_that_may_set(place))


def _written(place: Place, lines: Iterable[ast.Assign]) -> list[Edit]:
    found = list[Edit]()
    for node in lines:
        if not (edits := write_in_place(replace(place, statement=node))):
            return []
        edits += [place.source.replace(n.value, f"{place.text(n.value)}.clone()") for n in kept_by_name(place, node)]
        found += [edit for edit in edits if edit not in found]
    return found


def kept_by_name(place: Place, node: ast.Assign) -> list[ast.Assign]:
    """Lines that name what a line gives another tensor, for lines behind it: ``tmp = self.a``, ``self.b = tmp``."""
    function, target = place.source.function_of(node), node.targets[0]
    if function is None or not isinstance(target, (ast.Name, ast.Attribute)):
        return []
    every = [n for part in function.body for n in within(part)]
    later = {n.id for n in every if isinstance(n, ast.Name) and n.lineno > node.lineno and isinstance(n.ctx, ast.Load)}
    named = (n for n in every if isinstance(n, ast.Assign) and n.lineno < node.lineno and len(n.targets) == 1)
    alike = [n for n in named if path_of(n.value) == path_of(target) and isinstance(n.targets[0], ast.Name)]
    return [n for n in alike if path_of(n.targets[0]) in later]


def lines_that_may_set(place: Place) -> list[ast.Assign]:
    """Lines of what a step comes to in branches alone that give what a statement reads of an object another tensor."""
    if BEHIND not in place.failure.message or _ANOTHER.search(place.failure.message) is not None:
        return []
    here = place.source.function_of(place.statement)
    if here is None:
        return []
    read = {path_of(n) for n in heads(place.statement) if isinstance(n, ast.Attribute)}
    every = (n for n in ast.walk(place.source.tree) if isinstance(n, ast.Assign) and len(n.targets) == 1)
    run = {f for f in run_with(place.source, here.name) if f is not here and f.name not in MAKERS}
    run -= {f for f in run for n in ast.walk(f) if isinstance(n, ast.expr) and is_sized(n)}  # as many as there are
    own = [n for n in every if place.source.function_of(n) in run and not is_none(n.value)]
    return [n for n in own if any(path_of(each) in read for each in _set_by(n) if isinstance(each, ast.Attribute))]


def run_with(source: Source, name: str) -> set[Function]:
    """The functions of a file that those which come to one of them come to, as their names tell."""
    names = {n.name for n in source.parents if isinstance(n, Function)}
    comes_to = [{*_run_by(source, each)} for each in names]
    return {run for own in comes_to if name in {f.name for f in own} for run in own}


def lines_that_set(source: Source, failure: Failure, entry: str) -> list[ast.Assign]:
    """The lines that a failure names as giving names another tensor, with the others of the step that do."""
    known = list(_ANOTHER.finditer(failure.message))
    found = [_lines_of(source, each[1], int(each[3]), entry) for each in known if _is_in(failure, each[2])]
    every = {node for lines in found for node in lines}
    return sorted(every, key=lambda n: n.lineno) if found and len(found) == len(known) and all(found) else []


def _is_in(failure: Failure, file: str) -> bool:
    return failure.frame is not None and failure.frame.file == file


def _lines_of(source: Source, name: str, line: int, entry: str) -> set[ast.Assign]:
    """The line that gives a name another tensor, and the others of the step that give it one."""
    every = [n for n in ast.walk(source.tree) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    at = [(n, each) for n in every if n.lineno == line for each in _set_by(n)]
    at = [(n, each) for n, each in at if each is n.targets[0] or path_of(each).rpartition(".")[2] == name]
    if len(at) != 1:
        return set()
    named, target = at[0]
    path, run = path_of(target), {*_run_by(source, entry)}
    others = [n for n in every if path in map(path_of, _set_by(n)) and source.function_of(n) in run]
    others += _in_turn(source, named)
    return {named, *others} if isinstance(target, ast.Attribute) else {named}


def _in_turn(source: Source, node: ast.Assign) -> list[ast.Assign]:
    """The lines of an exchange through a name, ``tmp = self.a``, ``self.a = self.b``, ``self.b = tmp``, by one of them.

    Where one of them writes in place the others have to: ``self.a`` would be the memory that is written.
    """
    function = source.function_of(node)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    plain = [n for n in every if isinstance(n, ast.Assign) and len(n.targets) == 1]
    plain = [n for n in plain if all(isinstance(each, (ast.Name, ast.Attribute)) for each in (n.targets[0], n.value))]
    found = [node] if node in plain else []
    for each in found:
        ends = {path_of(each.targets[0]), path_of(each.value)}
        found += [n for n in plain if n not in found and {path_of(n.targets[0]), path_of(n.value)} & ends]
    through = any(isinstance(n.targets[0], ast.Name) for n in found)
    return [n for n in found if isinstance(n.targets[0], ast.Attribute)] if through else []


def _set_by(node: ast.Assign) -> list[ast.expr]:
    """The names and attributes that an assignment gives values, alone or among several."""
    target = node.targets[0]
    every = target.elts if isinstance(target, ast.Tuple) else [target]
    return [each for each in every if isinstance(each, (ast.Name, ast.Attribute))]


def _run_by(source: Source, entry: str) -> Iterator[Function]:
    """The functions of a file that one of them comes to, as their names tell."""
    every = [n for n in source.parents if isinstance(n, Function)]
    waiting, seen = [entry], set[str]()
    while waiting:
        name = waiting.pop()
        for function in (f for f in every if f.name == name and name not in seen):
            yield function
            calls = (n for part in function.body for n in within(part) if isinstance(n, ast.Call))
            waiting += [called(n) for n in calls]
        seen.add(name)
