"""Branches whose both ways do the same with another value: ``xs.append(a)`` here and ``xs.append(b)`` there."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device, may_run
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_of_the_host
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called, target_of
from paramgraph_kit.rewrite.source.pure import kept_finite

_TAKE = ("append", "appendleft")


def choose_what_is_given(place: Place) -> list[Edit]:
    """``xs.append(torch.where(c, a, b))``, and the same of an entry: ``table[k] = torch.where(c, a, b)``."""
    node = place.statement
    if not isinstance(node, ast.If) or len(node.body) != 1 or len(node.orelse) != 1:
        return []
    pair = [_given(place, part) for part in (node.body[0], node.orelse[0])]
    if None in pair or pair[0][0] != pair[1][0] or is_of_the_host(place, node.test):  # type: ignore[index]
        return []
    values = [each[1] for each in pair if each is not None]
    if not all(may_run(place, each, node) for each in values):
        return []
    condition = condition_on_device(place, node.test)
    yes, no = (
        kept_finite(place, each, node.test, condition, taken=taken)
        for each, taken in zip(values, (True, False), strict=True)
    )
    head, tail = pair[0][0]  # type: ignore[index]
    return [place.source.replace(node, f"{head}torch.where({condition}, {yes}, {no}){tail}")]


def _given(place: Place, part: ast.stmt) -> tuple[tuple[str, str], ast.expr] | None:
    """What stands around the one value that a statement hands on, and that value."""
    call = part.value if isinstance(part, ast.Expr) else None
    if isinstance(call, ast.Call) and called(call) in _TAKE and len(call.args) == 1 and not call.keywords:
        return (f"{place.text(call.func)}(", ")"), call.args[0]
    target = target_of(part)
    if isinstance(target, ast.Subscript) and isinstance(part, ast.Assign):
        return (f"{place.text(target)} = ", ""), part.value
    return None
