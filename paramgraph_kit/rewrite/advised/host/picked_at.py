"""Advice for one place of a tensor, at a number that the host has: ``alphas[t]``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import heads, names_in
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.widths import parts_of


def picked_at(place: Place, name: str, given: str) -> str:
    """What stands for ``x[:, t]`` where ``t`` is a tensor: a place of int64 that nothing asks for; or ""."""
    if place.failure.code != "size-frozen" or not place.failure.message.startswith("select got "):
        return ""
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load) or _of_host(place, node.value):
            continue
        parts = parts_of(node)
        at = [n for n, part in enumerate(parts) if not isinstance(part, ast.Slice) and name in names_in(part)]
        others = [part for n, part in enumerate(parts) if n not in at]
        if len(at) != 1 or not all(isinstance(part, ast.Slice) for part in others):
            continue
        (dim,) = at
        texts = [place.text(part) for part in parts]
        index = place.source.bracketed(parts[dim]) if not isinstance(parts[dim], ast.Name) else name
        tree = ast.parse(index, mode="eval")
        for part in ast.walk(tree):
            if isinstance(part, ast.Name) and part.id == name:
                part.id = given
        number = ast.unparse(tree)
        texts[dim] = (number if isinstance(tree.body, ast.Name) else f"({number})") + ".reshape(1)"
        x = place.source.bracketed(node.value)
        return f"here `{x}[{', '.join(texts)}].squeeze({dim})` for `{place.text(node)}`"
    return ""


def _of_host(place: Place, node: ast.expr) -> bool:
    """Whether it is a list or another table of the host's, which takes numbers."""
    known = place.attributes.get(node.attr) if isinstance(node, ast.Attribute) else None
    known = place.space.get(node.id) if isinstance(node, ast.Name) else known
    return isinstance(known, (list, tuple, dict))
