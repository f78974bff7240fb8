"""Advice for a list of places by which values are picked, where a mean, a sum or a count is made of all of them."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called

_COUNTS = (".size(0)", ".shape[0]", ".numel()")


def reduced_picks(place: Place, call: ast.Call, mask: str) -> str:
    """``ids = torch.where(low)`` of ``values[ids].mean(0)`` and ``ids[0].size(0)``, where nothing else reads it."""
    function, names = place.source.function_of(place.statement), stored([place.statement])
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)]
    is_tuple = gives_a_tuple(place, call)
    there = mask if mask.isidentifier() else "there"
    told = [_instead(place, read, there, is_tuple=is_tuple) for read in reads]
    if len(names) != 1 or not told or not all(told):
        return ""
    kept = "" if there == mask else f"keep the mask, `{there} = {mask}`, in its place, and "
    return f"{kept}write {', and '.join(f'{text} in line {n.lineno}' for text, n in zip(told, reads, strict=True))}"


def gives_a_tuple(place: Place, call: ast.Call) -> bool:
    """Whether a list of places is kept as one for each dimension: ``ids[0]`` are all rows, and not the first one."""
    whole = not isinstance(place.source.parents.get(call), (ast.Subscript, ast.Attribute))
    return whole and (called(call) == "where" or bool(call.keywords))  # nonzero(as_tuple=True)


def _instead(place: Place, read: ast.Name, there: str, *, is_tuple: bool) -> str:
    """What is written of the mask where places are read, or ""."""
    parents = place.source.parents
    node: ast.expr = read
    above = parents.get(read)
    if is_tuple and isinstance(above, ast.Subscript) and above.value is read:
        if place.text(above.slice) != "0":
            return ""
        node, above = above, parents.get(above)
    if isinstance(above, ast.Subscript) and above.slice is node and isinstance(above.ctx, ast.Load):
        form = place.forms.get(path_of(above.value))
        outer = parents.get(above)
        made = parents.get(outer) if isinstance(outer, ast.Attribute) else outer
        if form is None or len(form.shape) != 1 or not isinstance(made, ast.Call):
            return ""
        given = [place.text(each) for each in made.args if each is not above]
        if called(made) not in ("mean", "sum") or given not in ([], ["0"], ["-1"]) or made.keywords:
            return ""
        share = f" / {there}.sum()" * (called(made) == "mean")
        text = f"torch.where({there}, {place.text(above.value)}, 0).sum(){share}"
        text = f"({text})" if share and isinstance(parents.get(made), ast.BinOp) else text
        return f"`{text}` for `{place.text(made)}`"
    if isinstance(above, ast.Call) and called(above) == "len" and above.args == [node]:
        return f"`{there}.sum()` for `{place.text(above)}`"
    made = parents.get(above) if isinstance(above, ast.Attribute) else None
    if isinstance(made, (ast.Call, ast.Subscript)) and place.text(made).removeprefix(place.text(node)) in _COUNTS:
        return f"`{there}.sum()` for `{place.text(made)}`"
    return ""
