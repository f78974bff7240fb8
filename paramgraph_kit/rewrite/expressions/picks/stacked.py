"""Rows that one mask picks of several tensors, put back there: ``merged[m] = torch.stack([g[m] ...]).mean(0)``."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.expressions.picks.shapes import form_of, spread
from paramgraph_kit.rewrite.source.edits import Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, called, integer, renamed

_TOGETHER = ("mean", "sum", "amax", "amin", "prod")  # of each place alone


def assign_together_by_where(place: Place) -> list[Edit]:
    """It becomes ``merged.copy_(torch.where(m, torch.stack([g for g in grads]).mean(0), merged))``: of each place."""
    node = place.statement
    to = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(node, ast.Assign) or not isinstance(to, ast.Subscript):
        return []
    rows = _rows(node.value)
    mask = form_of(place, to.slice)
    if rows is None or mask is None or mask.dtype is not torch.bool:
        return []
    picked = rows.elt
    if not isinstance(picked, ast.Subscript) or place.text(picked.slice) != place.text(to.slice):
        return []
    value = renamed(place.text(node.value), {place.text(picked): place.source.bracketed(picked.value)})
    text = place.text(to.value)
    return [
        place.source.replace(node, f"{text}.copy_(torch.where({spread(place, to.slice, to.value)}, {value}, {text}))")
    ]


def _rows(value: ast.expr) -> ast.ListComp | ast.GeneratorExp | None:
    """``[g[m] for g in grads]`` of ``torch.stack(...).mean(dim=0)``, ``torch.stack(...).sum(0)`` and ``sum(...)``."""
    if not isinstance(value, ast.Call):
        return None
    inner: ast.expr = value
    if isinstance(value.func, ast.Attribute):
        dims = [*value.args, *(option.value for option in value.keywords if option.arg in ("dim", "axis"))]
        stack = value.func.value
        if called(value) not in _TOGETHER or len(dims) != 1 or len(value.args) + len(value.keywords) != 1:
            return None
        if integer(dims[0]) != 0 or not isinstance(stack, ast.Call) or path_of(stack.func) != "torch.stack":
            return None
        inner = stack
    elif path_of(value.func) != "sum":
        return None
    given = inner.args[0] if isinstance(inner, ast.Call) and len(inner.args) == 1 and not inner.keywords else None
    if not isinstance(given, (ast.ListComp, ast.GeneratorExp)) or len(given.generators) != 1:
        return None
    loop = given.generators[0]
    return given if not loop.ifs and isinstance(loop.target, ast.Name) else None
