"""Which of several lines that write to a number has made it what it is: ``s = max(1.0, s / 2)`` or ``s *= 2``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.restore.holder import Change

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "int": int, "float": float, "abs": abs}


def explains(node: ast.AST, change: Change) -> bool:
    """Whether a line, run once, makes of a number exactly what it is after the call.

    >>> line = ast.parse("n = max(1, n // 2)").body[0]
    >>> explains(line, Change("global", "n", 8, 4)), explains(line, Change("global", "n", 8, 9))
    (True, False)
    """
    if type(change.before) not in (int, float) or type(change.after) not in (int, float):
        return False
    try:
        return bool(_written(node, change.before) == change.after)
    except (ArithmeticError, ValueError, TypeError):
        return False


def _written(node: ast.AST, before: float) -> float | None:
    if isinstance(node, ast.AugAssign):
        operand, apply = _value(node.value, "", before), _OPERATORS.get(type(node.op))
        return None if operand is None or apply is None else apply(before, operand)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return _value(node.value, ast.unparse(node.targets[0]), before)
    return None


def _value(node: ast.expr, own: str, before: float) -> float | None:
    """The value of an expression of constants and of what is written itself; None where it has more."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) in (int, float) else None  # type: ignore[return-value]
    if own and ast.unparse(node) == own:
        return before
    inside: list[float | None]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, own, before)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        inside, apply = [_value(n, own, before) for n in (node.left, node.right)], _OPERATORS[type(node.op)]
    elif isinstance(node, ast.Call) and last_name(node.func) in _CALLS and not node.keywords:
        inside, apply = [_value(n, own, before) for n in node.args], _CALLS[last_name(node.func)]
    else:
        return None
    return None if any(each is None for each in inside) else float(apply(*inside))
