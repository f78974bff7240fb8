"""Statements that capture: a ``with`` of torch's or of the user's own manager, ``capture_begin``, and calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, last_name
from paramgraph_kit.doctor.observe.own_managers import CAPTURES
from paramgraph_kit.doctor.observe.own_regions import GRAPHED


def graphs_made(node: ast.AST) -> ast.Call | None:
    """The call of a statement that has torch capture."""
    value = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
    named = isinstance(value, ast.Call) and last_name(value.func) == GRAPHED and value.args
    return value if isinstance(value, ast.Call) and named else None


def captures(
    body: list[Any], method: ast.FunctionDef | None, managers: Mapping[str, str | int]
) -> Iterator[tuple[ast.stmt, ast.FunctionDef | None]]:
    """What captures, each with the method of a class that it stands in."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.args.args and node.name not in managers:
                    yield from captures(each.body, each, managers)
        elif graph_of(node, managers) is not None or graphs_made(node) is not None:
            yield node, method
        elif not isinstance(node, FUNCTIONS):
            for name in ("body", "orelse", "finalbody"):
                yield from captures(getattr(node, name, []), method, managers)


def graph_of(block: ast.stmt, managers: Mapping[str, str | int]) -> ast.expr | None:
    """The graph that a statement captures into."""
    begun = block.value if isinstance(block, ast.Expr) else None
    if isinstance(begun, ast.Call) and isinstance(begun.func, ast.Attribute) and begun.func.attr == "capture_begin":
        return begun.func.value
    for item in block.items if isinstance(block, ast.With) else ():
        call = item.context_expr
        if not isinstance(call, ast.Call):
            continue
        if last_name(call.func) in CAPTURES and call.args:
            return call.args[0]
        where = managers.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if isinstance(where, int) and where < len(call.args):
            return call.args[where]
        if isinstance(where, str) and item.optional_vars is not None:
            return ast.parse(f"{ast.unparse(item.optional_vars)}.{where}", mode="eval").body
    return None
