"""Advice for a tensor that a number of the host's picks: ``self.masks[self.turn]``, also where a helper is given it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from paramgraph_kit.doctor.observe.picked_tensors import words_of, written_in
from paramgraph_kit.rewrite.source.edits import Function, heads, is_method, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.writes import paths


def picked_before(place: Place) -> str:
    """It is copied, before each launch, to a tensor that the step reads."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "stale-input" or function is None:
        return ""
    read = [n for n in heads(place.statement) if isinstance(n, (ast.Name, ast.Subscript))]
    picks = {ast.unparse(pick): pick for node in read for pick in _picked(place, function, node)}
    found = [*picks.values()]
    if not found:
        return ""
    owners = dict.fromkeys(owner for each in found if (owner := place.source.function_of(each)) is not None)
    nodes = [n for owner in owners for part in owner.body for n in within(part)]
    names = {path for each in found for path in _numbers(place, each)}
    moving = [n for n in nodes if isinstance(n, (ast.Assign, ast.AugAssign)) and _sets(n) & names]
    ahead = [n for n in moving if any(_is_ahead(place, n, each) for each in found)]
    first = "".join(f", with line {n.lineno} (`{place.text(n)}`) done before that" for n in ahead[-1:])
    return words_of(found, nodes, first)


def _picked(place: Place, function: Function, node: ast.expr, most: int = 2) -> Iterator[ast.Subscript]:
    """What an expression picks itself, or what a name of it was given: by a line, or by the calls of its function."""
    if isinstance(node, ast.Subscript):
        held = place.value(path_of(node.value)) if path_of(node.value) else None
        entries = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else ()
        if any(isinstance(each, torch.Tensor) for each in entries) and _numbers(place, node):
            yield node
        return
    name = node.id if isinstance(node, ast.Name) else ""
    body = [n for part in function.body for n in within(part)]
    if not name or most == 0 or name in written_in(body):
        return
    made = [n for n in body if isinstance(n, ast.Assign) and name in stored([n])]
    if made:
        for each in made if len(made) == 1 and isinstance(made[0].targets[0], ast.Name) else ():
            yield from _picked(place, function, each.value, most - 1)
        return
    given = arguments_of(function)[is_method(place.source, function) :]
    if name not in given or function.name == place.entry:
        return
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    for call in calls:
        around = place.source.function_of(call)
        values = [k.value for k in call.keywords if k.arg == name]
        values += call.args[given.index(name) : given.index(name) + 1]
        for value in values if around is not None else ():
            yield from _picked(place, around or function, value, most - 1)


def _numbers(place: Place, pick: ast.Subscript) -> set[str]:
    """The numbers that decide the place."""
    return {path for path in paths(pick.slice) if type(place.value(path)) in (int, bool)}


def _is_ahead(place: Place, node: ast.AST, pick: ast.Subscript) -> bool:
    return place.source.function_of(node) is place.source.function_of(pick) and node.lineno < pick.lineno  # type: ignore[attr-defined]


def _sets(node: ast.Assign | ast.AugAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {path_of(part) for each in targets for part in getattr(each, "elts", [each])}
