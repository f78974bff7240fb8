"""Advice for memory of the host's that a step fills and then reads: both are done before each launch."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_ON_CPU = "changes a tensor on the CPU"


def staged(place: Place) -> str:
    """``buf.copy_(request)`` before ``x = buf.to(device)``: behind the launch it would be the next step's."""
    node, function = place.statement, place.source.function_of(place.statement)
    call = node.value if isinstance(node, ast.Expr) else None
    if place.failure.code != "host-counter" or _ON_CPU not in place.failure.message or function is None:
        return ""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not called(call).endswith("_"):
        return ""
    name = path_of(call.func.value)
    for later in (n for part in function.body for n in within(part)):
        target = target_of(later)
        if not isinstance(later, ast.Assign) or later.lineno <= node.lineno or not isinstance(target, ast.Name):
            continue
        if name in names_in(later.value):
            made = target.id
            return (
                f"line {later.lineno} reads `{name}`, so both belong before each launch: `{place.text(node)}`, then "
                f"`{made}_in.copy_({place.text(later.value)})` with `{made}_in`, made once, which the graph reads: "
                f"`{made} = {made}_in` in the function"
            )
    return ""
