"""``int(round(-self.min / s))`` of numbers that are tensors from now on: Python's ``round`` takes none."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, path_of, within
from paramgraph_kit.rewrite.source.place import Place, target_of


def round_there(place: Place) -> list[Edit]:
    """What the rest of the function rounds of the one thing that a statement gives a value; the even one of two."""
    function, target = place.source.function_of(place.statement), target_of(place.statement)
    if function is None or target is None or not path_of(target) or "round" in place.space:
        return []
    every = [n for part in function.body for n in within(part)]
    known = {path_of(target)}
    for node in (n for n in every if isinstance(n, ast.Assign) and n.lineno >= place.statement.lineno):
        name = target_of(node)
        if isinstance(name, ast.Name) and _paths(node.value) & known:
            known.add(name.id)
    edits = []
    for call in (n for n in every if isinstance(n, ast.Call) and path_of(n.func) == "round"):
        if len(call.args) != 1 or call.keywords or not _paths(call.args[0]) & known:
            continue
        above = place.source.parents.get(call)
        whole = above if isinstance(above, ast.Call) and path_of(above.func) == "int" else call
        edits.append(place.source.replace(whole, f"torch.round({place.text(call.args[0])})"))
    return edits


def _paths(node: ast.AST) -> set[str]:
    return {path_of(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
