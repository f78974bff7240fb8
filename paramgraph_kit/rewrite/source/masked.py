"""What is put where a mask is true, and by which mask."""

from __future__ import annotations

import ast
from collections.abc import Callable

from paramgraph_kit.rewrite.source.place import called, target_of

_COPIES = ("clone", "detach")


def mask_of_put(part: ast.stmt) -> str:
    """``active`` of ``depth[active] += step`` and ``active[active.clone()] = still``, or ""."""
    target = target_of(part)
    target = part.target if isinstance(part, ast.AugAssign) else target
    return uncopied(target.slice) if isinstance(target, ast.Subscript) else ""


def mask_in(index: ast.expr, is_mask: Callable[[ast.expr], bool]) -> ast.expr | None:
    """The mask of ``x[done]``, and of ``x[done, 0]`` and ``x[:, done]``, beside which there is none other."""
    found = [each for each in (index.elts if isinstance(index, ast.Tuple) else [index]) if is_mask(each)]
    return found[0] if len(found) == 1 else None


def uncopied(node: ast.expr) -> str:
    """``active`` of ``active.clone()``; "" for what is no name."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _COPIES:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""
