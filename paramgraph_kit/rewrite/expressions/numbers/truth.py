"""What is true of something on the device, under a name: ``ok = bool(m.all())``, ``bad = m.any() or not n.all()``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_ASKS = frozenset("any all isnan isinf isfinite equal allclose bool item".split())  # noqa: SIM905


def keep_the_truth(place: Place) -> list[Edit]:
    """``ok = bool(m.all())`` stays a tensor, and what it decides is decided there."""
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or not place.is_local(target.id):
        return []
    value = node.value
    asked = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "bool"
    joined = isinstance(value, ast.BoolOp) or (isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not))
    if not (asked and isinstance(value, ast.Call) and len(value.args) == 1) and not (joined and _is_truth(value)):
        return []
    text = condition_on_device(place, value)
    whole = text if text.isidentifier() or isinstance(value, ast.UnaryOp) else f"({text})"
    return [place.source.replace(value, text if joined else f"{whole}.bool()")]


def _is_truth(node: ast.expr) -> bool:
    """Whether an expression is true or false, and no value that stands in for another."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_truth, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return True
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and called(node) in _ASKS)
