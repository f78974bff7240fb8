"""Advice for a size that is one more than the largest of some numbers: ``torch.zeros(seg.max() + 1, d)``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh, renamed

_FILLED = ("zeros", "ones", "full")


def past_its_largest(place: Place, call: ast.Call) -> str:
    """The host gives a bound, as it does for ``one_hot``; what lies behind the largest stays as it is made."""
    for part in ast.walk(call) if called(call) in _FILLED else ():
        if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Add):
            continue
        largest, more = part.left, part.right
        one = isinstance(more, ast.Constant) and more.value == 1
        if not one or not isinstance(largest, ast.Call) or called(largest) not in ("max", "amax"):
            continue
        owner = largest.func.value if isinstance(largest.func, ast.Attribute) and not largest.args else None
        if owner is None or not path_of(owner) or largest.keywords:
            continue
        name = fresh("rows", place.taken)
        text = renamed(place.text(call), {place.text(part): name})
        return (
            f"its size is known on the device alone: give it, `{text}`, with a number `{name}` of which all of "
            f"`{place.text(owner)}` are less; rows beyond the largest stay as they are made"
        )
    return ""
