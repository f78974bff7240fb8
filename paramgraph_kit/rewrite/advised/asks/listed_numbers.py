"""Advice for an index that a list of numbers is of which the device decides how many are left in it."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.picks.listed import asked_of_each
from paramgraph_kit.rewrite.source.edits import heads, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of


def listed_numbers(place: Place) -> str:
    """``x[there].mean()`` where ``there = [c for c in range(n) if y[:, c].any()]`` stands above it."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "cpu-index" or function is None:
        return ""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    for pick in (n for n in heads(place.statement) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)):
        name = place.text(pick.slice)
        made = [n for n in every if isinstance(target := target_of(n), ast.Name) and target.id == name]
        if len(made) != 1 or not isinstance(made[0].value, ast.ListComp):
            continue
        if not (mask := asked_of_each(place, made[0].value)):
            continue
        head = f"`{name}` as a mask in line {made[0].lineno}, `{name} = {mask}`, picks here as its list does"
        x, method = place.text(pick.value), place.source.parents.get(pick)
        call = place.source.parents.get(method) if isinstance(method, ast.Attribute) else None
        if isinstance(call, ast.Call) and called(call) in ("mean", "sum") and not (call.args or call.keywords):
            share = f" / {name}.sum()" * (called(call) == "mean")
            text = f"(torch.where({name}, {x}, 0).sum(){share})"
            return f"{head}, and `{text}` for `{place.text(call)}`, of one dimension, has no size of the device's"
        return f"{head}; the device alone knows the size of that, so reduce all of it by `torch.where({name}, ...)`"
    return ""
