"""Advice for lines of the host's that nothing in the step waits for: what to return, and what to write there."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Function, locals_of, names_in, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.writes import paths, touches, written

NOBODY_WAITS = "nothing in the step waits for it"


def put_off(place: Place) -> str:
    """Where a line goes behind the launch, with what it reads; "" where something of the step reads what it makes."""
    node, function = place.statement, place.source.function_of(place.statement)
    if function is None or function.name != place.entry or node not in function.body or "\n" in place.text(node):
        return ""
    read = names_in(node) & place.local(node) - set(arguments_of(function))
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        read -= {node.target.id}
    at = function.body.index(node)
    if any(isinstance(n, ast.Return) for part in function.body[:at] for n in within(part)):
        return ""  # not each launch comes to it
    behind = function.body[at + 1 :]
    later = [n for part in behind for n in within(part)]
    made = {path for path in written(node) if "." in path or path not in locals_of(function)}  # `recent.append(x)`
    if any(touches(a, b) for a in made for part in behind for b in paths(part)):
        return ""
    if not read <= {*place.tensors, *place.seen} or _reads(later, stored([node])):
        return ""
    outer = sorted(stored([node]) & _globals(function))
    shared = f"`global {', '.join(outer)}` and " if outer else ""
    names = "`, `".join(sorted(read))
    what = f"return `{names}` too" if read else "take it out"
    given = f", of what was returned as `{names}`," if read else ""
    return (
        f"{NOBODY_WAITS}: {what}{' and take it out' if read else ''} here, and after each launch do"
        f"{given} {shared}`{place.text(node)}`"
    )


def _reads(nodes: list[ast.AST], names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in nodes)


def _globals(function: Function) -> set[str]:
    return {name for part in function.body for n in within(part) if isinstance(n, ast.Global) for name in n.names}
