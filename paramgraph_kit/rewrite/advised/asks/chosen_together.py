"""Advice for a branch on the device's value that gives several names another value, or one of two: all at once."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.source.edits import assigned, names_in, within
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


def one_of_both(place: Place, node: ast.If, name: str) -> str:
    """``ratio = a / b`` or, with ``else: ratio = 1.0``, that: a name that has no value ahead of the branch is none."""
    test, new = condition_of(place, node.test), fresh("new", place.taken)
    taken, left = (_alone(place, block, name) for block in (node.body, node.orelse))
    gives = any(place.text(t) == name for part in node.orelse for n in within(part) for t, _ in assigned(n))
    new = taken if node.orelse and taken else new
    kept = left or (fresh("other", {*place.taken, new}) if gives else name)
    return f"compute it in any case, and keep it or not: `{name} = torch.where({test}, {new}, {kept})`"


def _alone(place: Place, block: list[ast.stmt], name: str) -> str:
    """What a block gives to a name, where it does nothing else."""
    pairs = [*assigned(block[0])] if len(block) == 1 and isinstance(block[0], ast.Assign) else []
    texts = [place.text(value) for target, value in pairs if place.text(target) == name]
    return texts[0] if len(pairs) == 1 and texts and "\n" not in texts[0] else ""


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
