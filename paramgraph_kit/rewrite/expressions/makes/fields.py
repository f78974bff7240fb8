"""Results with several fields under one name, as names of their own, which can be handed over: ``top = p.topk(3)``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, locals_of, names_in, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, target_of

# Calls that give two tensors, by which names these have there.
_PAIRS = dict.fromkeys(("topk", "sort", "max", "min", "kthvalue", "mode", "cummax", "cummin"), ("values", "indices"))


def name_each_field(place: Place) -> list[Edit]:
    """``top.values[0].tolist()`` becomes ``top_values[0].tolist()``, of ``top_values, top_indices = p.topk(3)``."""
    function, source = place.source.function_of(place.statement), place.source
    if function is None or place.loops():
        return []  # what a round has made is not handed over
    every = [n for part in function.body for n in within(part)]
    for node in (n for n in every if isinstance(n, ast.Assign)):
        target, value = target_of(node), node.value
        fields = _PAIRS.get(called(value)) if isinstance(value, ast.Call) else None
        if not isinstance(target, ast.Name) or fields is None:
            continue
        reads = [n for n in every if isinstance(n, ast.Name) and n.id == target.id and n is not target]
        uses = [source.parents.get(n) for n in reads]
        if not reads or not any(n in set(ast.walk(place.statement)) for n in reads):
            continue
        known = [_field(use, fields) for use in uses]
        if "" in known or any(isinstance(n.ctx, ast.Store) for n in reads):
            continue
        taken = names_in(source.tree) | locals_of(function)
        names = {field: fresh(f"{target.id}_{field}", taken) for field in fields}
        edits = [source.replace(target, ", ".join(names.values()))]
        for use, field in zip(uses, known, strict=True):
            assert isinstance(use, ast.expr)
            edits.append(source.replace(use, names[field]))
        return edits
    return []


def _field(use: ast.AST | None, fields: tuple[str, str]) -> str:
    if isinstance(use, ast.Attribute) and use.attr in fields:
        return use.attr
    number = integer(use.slice) if isinstance(use, ast.Subscript) else None
    return fields[number] if number in (0, 1) else ""
