"""Numbers that are asked for what they themselves are, which a tensor of the same value is not."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Place

_KINDS = ("isinstance", "type", "id", "hash")


def asks_for_itself(place: Place) -> bool:
    """``ok is True`` and ``isinstance(n, int)`` of a name that a statement gives a number."""
    node, function = place.statement, place.source.function_of(place.statement)
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {path for target in targets for n in ast.walk(target) if (path := path_of(n))}  # type: ignore[arg-type]
    return bool(names) and function is not None and any(_asks(n, names) for n in ast.walk(function))


def _asks(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return path_of(node.func) in _KINDS and bool(node.args) and path_of(node.args[0]) in names
    if not isinstance(node, ast.Compare) or not any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
        return False
    sides = (node.left, *node.comparators)
    none = any(isinstance(each, ast.Constant) and each.value is None for each in sides)
    return not none and any(path_of(each) in names for each in sides)
