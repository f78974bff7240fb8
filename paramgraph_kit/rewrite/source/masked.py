"""What is put where a mask is true, and by which mask."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.place import called, target_of

_COPIES = ("clone", "detach")


def mask_of_put(part: ast.stmt) -> str:
    """``active`` of ``depth[active] += step`` and ``active[active.clone()] = still``, or ""."""
    target = target_of(part)
    target = part.target if isinstance(part, ast.AugAssign) else target
    return uncopied(target.slice) if isinstance(target, ast.Subscript) else ""


def uncopied(node: ast.expr) -> str:
    """``active`` of ``active.clone()``; "" for what is no name."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _COPIES:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""
