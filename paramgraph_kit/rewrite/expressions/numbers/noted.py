"""A number that a step notes in an object, and goes on with: ``self.scale = x.max().item()``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import COMPOUND, Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, fresh, target_of


def go_on_with_the_tensor(place: Place) -> list[Edit]:
    """The step goes on with the tensor, under a name of its own, and the number is noted from that, if late."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Attribute) or function is None or place.loops():
        return []
    path, value = path_of(target), node.value
    read = read_of(place, value) if isinstance(value, ast.Call) else None
    whole = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "int"
    if not path or read is None or whole or place.source.parents.get(node) is not function:
        return []
    every = [n for n in ast.walk(function) if isinstance(n, ast.Attribute) and path_of(n) == path and n is not target]
    block = place.source.block_of(node)
    later = {part for each in block[block.index(node) + 1 :] for part in ast.walk(each)}
    if not every or any(n not in later or not isinstance(n.ctx, ast.Load) for n in every):
        return []
    if any(isinstance(n, (ast.Lambda, *COMPOUND[-3:])) for n in later):
        return []
    name = fresh(target.attr, place.taken)
    lines = [f"{name} = {place.source.bracketed(read)}.detach()", f"{place.text(target)} = {name}.item()"]
    edits = [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]
    return [*edits, *(place.source.replace(n, name) for n in every)]
