"""Numbers of which a test only asks whether there are any: ``if cache.offset > 0``, which moves without another way."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.observe.captured_entries import above_of

_IS_ANY = {ast.Gt: 0, ast.NotEq: 0, ast.GtE: 1}


def is_as_before(code: CodeType, node: ast.expr, then: Any, now: Any) -> bool:
    """Whether a test asks for no more than whether a number is above zero, which two of its values both are."""
    if not (isinstance(then, (int, float)) and isinstance(now, (int, float)) and min(then, now) > 0):
        return False
    above = above_of(code, node)
    if isinstance(above, ast.Compare) and above.left is node and len(above.ops) == 1:
        with_what = above.comparators[0]
        is_whole = isinstance(then, int) and isinstance(now, int)
        least = _IS_ANY.get(type(above.ops[0])) if is_whole or not isinstance(above.ops[0], ast.GtE) else None
        return isinstance(with_what, ast.Constant) and least is not None and with_what.value == least
    return isinstance(above, (ast.If, ast.IfExp, ast.BoolOp, ast.UnaryOp)) and not isinstance(
        getattr(above, "op", None), (ast.USub, ast.Invert)
    )
