"""Advice for counts that lines above them read as they were, and lines below as they are: their order is kept."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.stores import written_by_call
from paramgraph_kit.rewrite.source.writes import paths

_DEEP = 3  # methods that others call


def reading_methods(place: Place, function: Function, path: str) -> dict[str, int]:
    """Methods of the file that read ``self.updates``, themselves or in what they call, with the line that does."""
    helpers = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n is not function]
    found = {f"self.{n.name}": line for n in helpers if (line := _line_of(n, path))}
    for _ in range(_DEEP):
        for n in helpers:
            calls = (path_of(c.func) for part in n.body for c in within(part) if isinstance(c, ast.Call))
            inner = next((found[call] for call in calls if call in found), 0)
            if inner:
                found.setdefault(f"self.{n.name}", inner)
    return found


def _line_of(function: Function, path: str) -> int:
    """The first line of a function that reads a path."""
    return min((part.lineno for part in _simple(function) if path in paths(part)), default=0)


def _simple(function: Function) -> list[ast.expr]:
    every = [n for part in function.body for n in within(part)]
    return [n for n in every if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)]


def in_order(place: Place, function: Function, node: ast.stmt, path: str) -> str:
    """``self.updates += 1`` between ``if self.updates % 5 == 0`` and a method that computes with the new count."""
    value = getattr(node, "value", None)
    if place.failure.code != "host-counter" or place.loops() or not path.startswith("self.") or value is None:
        return ""
    if names_in(value) & {*place.tensors, *place.seen} or any(isinstance(n, ast.Call) for n in ast.walk(value)):
        return ""
    methods = reading_methods(place, function, path)
    own = [n for part in function.body for n in within(part)]
    calls = [(n.lineno, methods[name]) for n in own if isinstance(n, ast.Call) and (name := path_of(n.func)) in methods]
    reads = [(n.lineno, n.lineno) for n in _simple(function) if path_of(n) == path]
    above = sorted({line for at, line in (*calls, *reads) if at < node.lineno})
    below = sorted({line for at, line in calls if at > node.lineno})
    if not above or not below:
        return ""
    return (
        f"belongs before each launch, between what reads the count: what {_lines(above)} {_asks(above)} for comes "
        f"ahead of it, with the old count, and what {_lines(below)} {_asks(below)} for behind it, with the new one"
    )


def _lines(lines: list[int]) -> str:
    return f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"


def _asks(lines: list[int]) -> str:
    return "asks" if len(lines) == 1 else "ask"


def shuffled_for(function: Function, call: ast.Call) -> int:
    """The line below ``random.shuffle(order)`` that reads the order."""
    held = {path_of(each) for each in written_by_call(call)} - {""}
    every = [n for part in function.body for n in within(part) if isinstance(n, (ast.Name, ast.Attribute))]
    read = [n for n in every if isinstance(n.ctx, ast.Load) and path_of(n) in held]
    return min((n.lineno for n in read if n.lineno > call.lineno), default=0)
