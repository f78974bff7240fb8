"""Advice for ``x[mask] = new[mask]``: all of it is written, and stays what it was where the mask leaves it out."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.place import Place, fresh

_CODES = ("dynamic-shape", "mask-assignment")


def stored_by_a_mask(place: Place) -> str:
    """The same by ``torch.where``, of a mask as wide as what it picks of."""
    node = place.statement
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    value = node.value if isinstance(node, ast.Assign) else None
    if place.failure.code not in _CODES:
        return ""
    if not isinstance(target, ast.Subscript) or not isinstance(value, ast.Subscript):
        return ""
    if not isinstance(target.slice, (ast.Name, ast.Attribute)) or ast.dump(target.slice) != ast.dump(value.slice):
        return ""
    x, new, mask = place.text(target.value), place.text(value.value), place.text(target.slice)
    there = fresh("there", place.taken)
    return (
        f"`{there} = {mask}.reshape(*{mask}.shape, *[1] * ({x}.dim() - {mask}.dim()))` and "
        f"`{x}.copy_(torch.where({there}, {new}, {x}))` in its place"
    )
