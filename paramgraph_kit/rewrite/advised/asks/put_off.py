"""Advice for lines of the host's that nothing in the step waits for: what to return, and what to write there."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.state.added_there import is_written_there
from paramgraph_kit.rewrite.source.edits import Function, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, target_of
from paramgraph_kit.rewrite.source.writes import paths, reads_entry, touches, written

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
    target = node.target if isinstance(node, ast.AugAssign) else target_of(node)
    read_in = [n for n in behind if target is None or reads_entry(target, n)]  # `n` is not `state["n"]`
    if any(touches(a, b) for a in made for part in read_in for b in paths(part)):
        return ""
    if not read <= {*place.tensors, *place.seen} or _reads(later, stored([node])):
        return ""
    outer = sorted(stored([node]) & _globals(function))
    shared = f"`global {', '.join(outer)}` and " if outer else ""
    names = "`, `".join(sorted(read))
    what = f"return `{names}` too" if read else "take it out"
    given = f", of what was returned as `{names}`," if read else ""
    first = None if is_written_there(place) else _reading_first(place, function.body[:at], made, target)
    waits = NOBODY_WAITS
    if first is not None:
        waits = f"what the host makes of it at line {first.lineno} belongs before each launch"
    return (
        f"{waits}: {what}{' and take it out' if read else ''} here, and after each launch do"
        f"{given} {shared}`{place.text(node)}`"
    )


def _reading_first(
    place: Place, above: list[ast.stmt], made: set[str], target: ast.expr | None
) -> ast.expr | ast.stmt | None:
    """``rate = 0.5 if self.frames < 4 else 0.05`` above ``self.frames += 1``: a capture has what the count is then."""
    reading = {
        n.name
        for n in ast.walk(place.source.tree)
        if isinstance(n, Function) and any(touches(a, b) for a in made for part in n.body for b in paths(part))
    }
    for node in (n for part in above for n in within(part)):
        read: ast.expr | None = node.value if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else None
        if isinstance(node, ast.If) and any(isinstance(n, ast.Assign) for part in node.body for n in within(part)):
            read = node.test
        if read is None or not isinstance(node, ast.stmt):
            continue
        names = (path_of(n) for n in ast.walk(read) if isinstance(n, ast.Attribute))  # methods, and properties
        asks = any(path.startswith("self.") and path.removeprefix("self.") in reading for path in names)
        reads = (
            reads_entry(target, read) if target is not None else any(touches(a, b) for a in made for b in paths(read))
        )
        if asks or reads:
            return node
    return None


def _reads(nodes: list[ast.AST], names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in nodes)


def _globals(function: Function) -> set[str]:
    return {name for part in function.body for n in within(part) if isinstance(n, ast.Global) for name in n.names}
