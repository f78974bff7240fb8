"""A branch that picks of one tensor in one of two ways: ``if worst[k] > t: worst = worst[worst > t]``, else the first.

The device chooses the mask, by which one pick is made; what comes of a pick by a mask has rules of its own.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device
from paramgraph_kit.rewrite.expressions.picks.shapes import MASKS, form_of
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, fresh, target_of


def pick_by_either_mask(place: Place) -> list[Edit]:
    """``if c: x = y[m]`` and ``else: x = y[:k]`` as ``x = y[torch.where(c, m, arange < k)]``."""
    node, function = place.statement, place.source.function_of(place.statement)
    if not isinstance(node, ast.If) or len(node.body) != 1 or len(node.orelse) != 1 or function is None:
        return []
    ways = [_picked(place, each) for each in (node.body[0], node.orelse[0])]
    if ways[0] is None or ways[1] is None or ways[0][:2] != ways[1][:2]:
        return []
    condition = condition_on_device(place, node.test)
    if not condition:
        return []
    name, of, one, other = *ways[0], ways[1][2]
    kept = fresh("kept", place.taken)
    lines = [f"{kept} = torch.where({condition}, {one}, {other})", f"{name} = {of}[{kept}]"]
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def _picked(place: Place, node: ast.stmt) -> tuple[str, str, str] | None:
    """The name that is given a pick, what of, and the mask that it is."""
    name = target_of(node)
    part = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(name, ast.Name) or not isinstance(part, ast.Subscript) or not isinstance(part.value, ast.Name):
        return None
    of, index = part.value.id, part.slice
    form = form_of(place, part.value)
    if form is None or len(form.shape) != 1:
        return None
    if isinstance(index, ast.Slice):
        if index.lower is not None or index.step is not None or index.upper is None:
            return None
        if any(isinstance(n, (ast.Sub, ast.USub)) for n in ast.walk(index.upper)):
            return None  # below zero it would count from the end
        end = place.text(index.upper)
        end = end if isinstance(index.upper, (ast.Constant, ast.Name)) else place.source.bracketed(index.upper)
        return name.id, of, f"torch.arange(len({of}), device={of}.device) < {end}"
    asked = form_of(place, index) if isinstance(index, MASKS) else None
    return (name.id, of, place.text(index)) if asked is not None and len(asked.shape) == 1 else None
