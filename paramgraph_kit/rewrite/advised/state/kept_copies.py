"""Advice for what a step keeps of its results or arguments: copies are kept, behind each launch."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import locals_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, renamed


def kept_copies(place: Place) -> str:
    """``buffer.append((x, y))``: whose memory the next launch writes, and no replay runs the line."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "output-alias" or function is None or not isinstance(node, (ast.Expr, ast.Assign)):
        return ""
    read = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    held = sorted({n.id for n in read} & {*place.tensors, *place.seen} & locals_of(function))
    if not held or node.lineno != node.end_lineno:
        return ""
    line = renamed(place.text(node), {name: f"{name}.clone()" for name in held})
    made = [f"`{name}`" for name in held if name not in arguments_of(function)]
    return (
        f"take it out{', return ' * bool(made)}{', '.join(made)}, and behind each launch `{line}`, which keeps today's"
    )
