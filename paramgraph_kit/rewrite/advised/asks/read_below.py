"""Whether what a statement writes on the device is read again in the same step: behind the launch it would be late."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.expressions.state.added_there import is_written_there
from paramgraph_kit.rewrite.source.called_from import called_from
from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.writes import is_read, paths_in_place

_BEGINS = ("__init__", "__post_init__", "setup", "reset")


def is_read_below(place: Place) -> bool:
    """Whether a line below a statement, or a function that it comes to, reads the tensor that this writes in place."""
    node, function = place.statement, place.source.function_of(place.statement)
    by_method = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if function is None or not (by_method or is_written_there(place)):
        return False
    written = {path for path in paths_in_place(within(node)) if path}
    names = written | _other_names(function, written)
    below = [*_below(place, node, function)]
    if any(is_read(name, part) for name in names for part in below):
        return True
    attributes = {name.rpartition(".")[2] for name in names if "." in name}
    inside = (n for n in called_from(place, below) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    if any(n.attr in attributes for n in inside):
        return True
    others = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n is not function]
    if function.name == place.entry:  # a module that is called below
        others = [n for n in others if n.name in ("forward", "__call__")] if _calls(below) else []
    return any(_reads(n, attributes) for n in others if n.name not in _BEGINS)


def _below(place: Place, node: ast.stmt, function: Function) -> Iterator[ast.stmt]:
    """Statements that come behind a statement, in a loop also those above it."""
    loops = place.loops()
    if loops:
        yield from (each for each in loops[-1].body if each is not node)
    for each in function.body:
        if each.lineno > node.lineno:
            yield each
        elif each is not node and (each.end_lineno or 0) > node.lineno:
            yield from (n for n in within(each) if isinstance(n, ast.stmt) and n.lineno > node.lineno)


def _other_names(function: Function, written: set[str]) -> set[str]:
    """What else has the tensor: ``best = self.best``, and the other way round."""
    found = set[str]()
    for node in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        names, value = {path_of(each) for each in node.targets} - {""}, path_of(node.value)
        if names & written and value:
            found.add(value)
        elif value in written:
            found |= names
    return found


def _calls(nodes: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Call) for part in nodes for n in within(part))


def _reads(function: Function, attributes: set[str]) -> bool:
    every = (n for part in function.body for n in within(part) if isinstance(n, ast.Attribute))
    return any(n.attr in attributes and isinstance(n.ctx, ast.Load) for n in every)
