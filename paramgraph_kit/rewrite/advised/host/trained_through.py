"""What a helper brings to the host for a backward pass of the step: nothing of it can go behind a launch."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.asks.first_thing import in_pieces
from paramgraph_kit.rewrite.source.edits import Function, Source, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called


def trained_through(place: Place, step: tuple[Source, ast.FunctionDef | ast.AsyncFunctionDef]) -> str:
    """Why a line of a helper stays ahead of the backward pass of the step that calls it, or ""."""
    source, entry = step
    helper = place.source.function_of(place.statement)
    if helper is None or helper is entry or helper.name == entry.name or not isinstance(place.statement, ast.Assign):
        return ""
    known = _reached(helper, place.statement, stored(place.statement.targets))
    returned = [n.value for part in helper.body for n in within(part) if isinstance(n, ast.Return) and n.value]
    for call in (n for part in entry.body for n in within(part) if isinstance(n, ast.Call)):
        made = source.statement_of(call) if called(call) == helper.name else None
        if not isinstance(made, ast.Assign) or made.value is not call or len(made.targets) != 1:
            continue
        given = {name for value in returned for name in _given(made.targets[0], value, known)}
        losses = _reached(entry, made, given)
        for back in (n for part in entry.body for n in within(part) if isinstance(n, ast.Call)):
            loss = path_of(back.func.value) if isinstance(back.func, ast.Attribute) else ""
            if called(back) == "backward" and back.lineno > made.lineno and loss in losses:
                return (
                    f"`{loss}.backward()` (line {back.lineno}) goes through what it makes, and none goes through a "
                    f"launch, so it cannot go behind one: {in_pieces(entry)}"
                )
    return ""


def _reached(function: ast.FunctionDef | ast.AsyncFunctionDef, first: ast.stmt, names: set[str]) -> set[str]:
    """The names that get something of some names in what follows a statement, with these."""
    known = set(names)
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt) and n.lineno > first.lineno]
    for node in sorted(every, key=lambda each: each.lineno):
        if isinstance(node, Function):
            known |= {node.name} if names_in(node) & known else set()
        elif (
            isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value and names_in(node.value) & known
        ):
            known |= stored(node.targets if isinstance(node, ast.Assign) else [node.target])
    return known


def _given(target: ast.expr, value: ast.expr, known: set[str]) -> set[str]:
    """What of a caller's names gets one of some names that a helper returns."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        return {name for one, other in pairs if names_in(other) & known for name in stored([one])}
    return stored([target]) if names_in(value) & known else set()
