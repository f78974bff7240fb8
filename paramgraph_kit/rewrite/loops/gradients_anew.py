"""Gradients of what a round is given, which it reads: of another tensor in each round, and of one in a graph."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from typing import TypeGuard

from paramgraph_kit.rewrite.loops.spans import Block
from paramgraph_kit.rewrite.source.edits import within
from paramgraph_kit.rewrite.source.moving import is_backward, stored


def gradients_anew(loop: Block, part: Sequence[ast.stmt], parameters: Collection[str]) -> list[str]:
    """Parameters whose gradient a round makes and reads, and that its loop gives another tensor each time."""
    inside = [n for node in part for n in within(node)]
    around = [node for node in loop.body if node not in part]
    if not any(map(is_backward, inside)) or any(is_backward(n) for node in around for n in within(node)):
        return []
    anew = stored(around) | (stored([loop.target]) if isinstance(loop, ast.For) else set())
    grads = [n for n in inside if _is_gradient(n)]
    read = {n.value.id for n in grads if isinstance(n.value, ast.Name) and isinstance(n.ctx, ast.Load)}
    zeroed = {n.value.id for n in grads if isinstance(n.value, ast.Name) and isinstance(n.ctx, ast.Store)}
    return sorted(read & anew & {*parameters} - zeroed)


def _is_gradient(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "grad"
