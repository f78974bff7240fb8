"""Assignments through a mask that stands behind dimensions taken whole: ``f[:, solid] = bounced[:, solid]``."""

from __future__ import annotations

import ast
import re

import torch

from paramgraph_kit.rewrite.expressions.picks.shapes import MASKS, form_of
from paramgraph_kit.rewrite.source.edits import Edit, combined, path_of
from paramgraph_kit.rewrite.source.place import Form, Place, called, renamed
from paramgraph_kit.rewrite.source.row_modules import ELEMENTS
from paramgraph_kit.rewrite.source.widths import takes_all

_SEEN = re.compile(r"index(?:_put_)? of \w+\[([\d, ]*)\], bool\[([\d, ]*)\]")
_COMPUTES = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.expr_context, ast.Name, ast.Attribute)


def assign_all_by_where(place: Place) -> list[Edit]:
    """They become ``f.copy_(torch.where(solid, bounced, f))``: a mask goes along the last dimensions by itself."""
    node = place.statement
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    to = targets[0] if len(targets) == 1 else None
    if not isinstance(node, (ast.Assign, ast.AugAssign)) or not isinstance(to, ast.Subscript):
        return []
    parts = to.slice.elts if isinstance(to.slice, ast.Tuple) else []
    if len(parts) < 2 or not isinstance(parts[-1], MASKS) or not all(map(_takes_all, parts[:-1])):
        return []
    if (mask := _mask(place, to, parts)) is None:
        return []
    picked = [
        n for n in ast.walk(node.value) if isinstance(n, ast.Subscript) and place.text(n.slice) == place.text(to.slice)
    ]
    if not _is_of_each(place, node.value, picked):
        return []
    text = place.text(to.value)
    value = renamed(place.text(node.value), {place.text(each): place.source.bracketed(each.value) for each in picked})
    if isinstance(node, ast.AugAssign) and not (value := combined(node, text, value)):
        return []
    return [place.source.replace(node, f"{text}.copy_(torch.where({mask}, {value}, {text}))")]


def _takes_all(part: ast.expr) -> bool:
    return takes_all(part) or (isinstance(part, ast.Constant) and part.value is ...)


def _mask(place: Place, to: ast.Subscript, parts: list[ast.expr]) -> str | None:
    """The mask, with a dimension for each that lies behind it; None where it may be no mask, or lie elsewhere."""
    whole, one = _form(place, to.value), _form(place, parts[-1])
    seen = _SEEN.search(place.failure.message)
    shapes = [tuple(map(int, filter(None, each.split(", ")))) for each in seen.groups()] if seen is not None else []
    if one is not None and one.dtype is not torch.bool and not isinstance(parts[-1], ast.Compare):
        return None
    dims = len(whole.shape) if whole is not None else len(shapes[0]) if shapes else 0
    of_mask = len(one.shape) if one is not None else len(shapes[1]) if shapes else 0
    anywhere = any(isinstance(part, ast.Constant) for part in parts[:-1])
    behind = 0 if anywhere else dims - (len(parts) - 1) - of_mask
    if not of_mask or not dims or behind < 0:
        return None
    return (
        f"{place.source.bracketed(parts[-1])}[..., {', '.join(['None'] * behind)}]" if behind else place.text(parts[-1])
    )


def _form(place: Place, node: ast.expr) -> Form | None:
    held = place.value(path_of(node)) if isinstance(node, ast.Attribute) else None
    return Form.of(held) if isinstance(held, torch.Tensor) else form_of(place, node)


def _is_of_each(place: Place, value: ast.expr, picked: list[ast.Subscript]) -> bool:
    """Whether a value is computed of each element alone, with numbers beside what the mask picks."""
    known = {id(n) for each in picked for n in ast.walk(each)}
    for part in (n for n in ast.walk(value) if id(n) not in known):
        if isinstance(part, ast.Call) and called(part) in ELEMENTS and not part.keywords:
            of_torch = path_of(part.func).partition(".")[0] == "torch"
            known.update(map(id, ast.walk(part.func) if of_torch else [part.func]))
            continue
        form = _form(place, part) if isinstance(part, (ast.Name, ast.Attribute)) else None
        if not isinstance(part, _COMPUTES) or (form is not None and form.shape):
            return False
    return True
