"""A line that computes with what the host has made and copied, of which only that is kept in a tensor."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.place import Place

_COPIES = ("to", "cuda", "pin_memory", "float", "double", "half", "long", "contiguous")


def of_what_is_kept(place: Place, call: ast.Call, kept: str, name: str) -> str:
    """What a line becomes that computes with what is copied: ``noise = noise_in * self.sigma``."""
    copied: ast.AST = call
    while isinstance(method := place.source.parents.get(copied), ast.Attribute) and method.attr in _COPIES:
        copied = place.source.parents.get(method) or copied
    value = getattr(place.statement, "value", None)
    if not isinstance(value, ast.expr) or copied is value or not isinstance(copied, ast.expr):
        return f"`{kept}` for `{name}`"
    return f"`{name} = {place.text(value).replace(place.text(copied), kept)}`"
