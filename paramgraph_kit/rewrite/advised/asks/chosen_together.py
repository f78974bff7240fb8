"""Advice for a branch on the device's value that gives several names another value, or one of two: all at once."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.source.edits import assigned, names_in
from paramgraph_kit.rewrite.source.place import Place, fresh


def chosen_together(place: Place, node: ast.If) -> str:
    """``if new < cost: p, cost, lam = p + d, new, lam / 3`` and ``else: lam = lam * 2``, with what they were before."""
    ways = [_given(block) for block in (node.body, node.orelse)]
    names = list(dict.fromkeys(name for way in ways if way is not None for name in way))
    if None in ways or len(names) < 2:
        return ""
    chosen = fresh("chosen", place.taken)
    taken, left = (way or {} for way in ways)

    def text(value: ast.expr | None, name: str) -> str:
        return name if value is None else place.text(value)

    each = [f"torch.where({chosen}, {text(taken.get(n), n)}, {text(left.get(n), n)})" for n in names]
    return (
        f"compute both ways, and keep one of each: `{chosen} = {condition_of(place, node.test)}`, and "
        f"`{', '.join(names)} = {', '.join(each)}` in place of the branch"
    )


def _given(block: list[ast.stmt]) -> dict[str, ast.expr] | None:
    """What a block gives to names, each once and of what they were before it; None where it does anything else."""
    found = dict[str, ast.expr]()
    for part in block:
        pairs = [*assigned(part)]
        plain = bool(pairs) and all(isinstance(t, ast.Name) and t.id not in found for t, _ in pairs)
        if not plain or any(names_in(value) & found.keys() for _, value in pairs):
            return None
        found |= {t.id: value for t, value in pairs if isinstance(t, ast.Name)}
    return found
