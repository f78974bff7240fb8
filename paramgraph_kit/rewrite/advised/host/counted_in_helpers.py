"""Advice for a count in a function that the step calls, of which other such functions compute something."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.called_from import function_of_call
from paramgraph_kit.rewrite.source.edits import Function, path_of
from paramgraph_kit.rewrite.source.place import Place

_DEEP = 4  # functions that others call
_MAKES = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)


def counted_in_a_helper(place: Place, function: Function, path: str) -> str:
    """``self.t += 1`` in ``update``, which a step calls behind ``select``: that computes with the count as it was."""
    if place.failure.code != "host-counter" or not path.startswith("self.") or not place.entry or place.loops():
        return ""
    steps = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry]
    if function.name == place.entry:
        return ""
    orders = [order for n in steps if place.statement in (order := [*_in_order(place, n, _DEEP)])]  # of its own class
    if len(orders) != 1 or orders[0].count(place.statement) != 1:
        return ""
    at, every = orders[0].index(place.statement), [*enumerate(orders[0])]
    reads = [(n, number) for number, n in every if isinstance(n, ast.Attribute) and _is_computed(place, n, path)]
    above = sorted({n.lineno for n, number in reads if number < at and n.lineno != place.statement.lineno})
    below = sorted({n.lineno for n, number in reads if number > at})
    text = place.text(place.statement)
    if above and below:
        return (
            f"belongs before each launch, between what reads the count: what line {above[0]} asks for comes ahead of "
            f"it, with the old count, and what line {below[0]} asks for behind it, with the new one"
        )
    if below:
        return f"belongs before each launch: line {below[0]} reads the new value"
    if above:
        return (
            f"what the host makes of it at line {above[0]} belongs before each launch: take it out here, and after "
            f"each launch do `{text}`"
        )
    return ""


def _is_computed(place: Place, node: ast.Attribute, path: str) -> bool:
    """Whether a read of a path is of a line that makes something of it."""
    if path_of(node) != path or not isinstance(node.ctx, ast.Load) or node not in place.source.parents:
        return False
    return isinstance(place.source.statement_of(node), _MAKES)


def _in_order(place: Place, function: Function, deep: int) -> Iterator[ast.AST]:
    """What runs in a step, one after the other, as far as its text tells: what is called where it is called."""
    for statement in function.body:
        yield from _evaluated(place, statement, deep)


def _evaluated(place: Place, node: ast.AST, deep: int) -> Iterator[ast.AST]:
    if isinstance(node, (Function, ast.ClassDef, ast.Lambda)):
        return
    below = [*ast.iter_child_nodes(node)]
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        below = [node.value, *(n for n in below if n is not node.value)]
    for each in below:
        yield from _evaluated(place, each, deep)
    found = function_of_call(place, node) if isinstance(node, ast.Call) and deep else None
    if found is not None and found[0].source is place.source:
        yield from _in_order(found[0], found[1], deep - 1)
    yield node
