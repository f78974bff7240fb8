"""Names that a round is given, and that need another value before its loop.

One that only a way which is not taken would give a value, and a sum that begins as a number, and is a tensor from the
second round on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping

import torch

from paramgraph_kit.rewrite.loops.spans import Block
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import target_of

_QUOTED = re.compile(r"'(\w+)'")


def unbound(error: Exception, parameters: Collection[str]) -> str:
    """The parameter of a round that had no value where its loop called it, or ""."""
    said = _QUOTED.findall(str(error)) if isinstance(error, UnboundLocalError) else []
    return next((name for name in said if name in parameters), "")


def none_before(source: Source, function: Function, loop: Block, name: str) -> list[Edit]:
    """``scaler = None`` before ``if use_amp:`` that may make it one; nothing where another place does as well."""
    if any(isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names for n in ast.walk(function)):
        return []
    giving = [node for node in function.body if name in stored([node])]
    first = giving[0] if giving else None
    if not isinstance(first, ast.If) or first.lineno >= loop.lineno:
        return []
    return [source.before(first, [f"{name} = None"])]


def zeros_before(
    source: Source, function: Function, loop: Block, sums: Mapping[str, torch.dtype], device: str
) -> list[Edit]:
    """``total = torch.zeros((), device=device)`` for ``total = 0`` of what rounds add tensors to."""
    edits = []
    inside = {id(n) for n in ast.walk(loop)}
    outside = [n for n in ast.walk(function) if id(n) not in inside]
    for name, dtype in sums.items():
        of_it = [n for n in outside if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
        made = [value for n in outside for target, value in _pairs(n) if target in of_it and _is_zero(value)]
        if not made or len(made) != len(of_it):
            return []
        kind = "" if dtype == torch.get_default_dtype() else f"dtype={dtype}, "
        edits += [source.replace(value, f"torch.zeros((), {kind}device={device})") for value in made]
    return edits


def _pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """``a, 0`` and ``b, 0`` of ``a, b = 0, 0``."""
    target = target_of(node)
    if target is None or not isinstance(node, ast.Assign):
        return []
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(target.elts, node.value.elts, strict=False))
    return [(target, node.value)]


def _is_zero(node: ast.expr) -> bool:
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return is_number and not isinstance(getattr(node, "value", None), bool) and getattr(node, "value", None) == 0
