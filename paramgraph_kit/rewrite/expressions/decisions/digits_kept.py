"""Numbers that the device chooses between: torch has them in float32, also where Python computed in float64."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.source.digits import is_wide
from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place

_MODULES = ("math", "np", "numpy")
_OF_PYTHON = ("min", "max", "abs", "float")


def where_of(place: Place, condition: str, one: str, other: str) -> str:
    """``torch.where(c, a, b)``, with one of two numbers made a tensor of float64 where the others there are such."""
    both = [ast.parse(text.strip(), mode="eval").body for text in (one, other)]
    plain = all(_is_number(place, each) for each in both) and not all(map(_is_whole, both))
    if plain and is_wide(place):
        one = f"torch.full((), {one}, dtype=torch.float64, device={place.device})"
    return f"torch.where({condition}, {one}, {other})"


def _is_whole(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and type(node.value) in (int, bool)


def _is_number(place: Place, node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(place, node.left) and _is_number(place, node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(place, node.operand)
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Call):
        name = path_of(node.func)
        known = name in _OF_PYTHON or name.partition(".")[0] in _MODULES
        return known and not node.keywords and all(_is_number(place, each) for each in node.args)
    return (isinstance(node, ast.Name) and node.id in place.plain) or is_given(place, node)
