"""The first and the last place where a mask holds, without a list of all: boxes around what a mask marks."""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.expressions.picks.listed import is_written, listed_by
from paramgraph_kit.rewrite.source.edits import Edit, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of

_TWO = re.compile(r"nonzero of \w+\[\d+, \d+\]")


def first_and_last(place: Place) -> list[Edit]:
    """``ys, xs = torch.where(m)`` of which only the smallest and the largest are asked: ``ys.min()``, ``xs.max()``."""
    node, function, source = place.statement, place.source.function_of(place.statement), place.source
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or function is None:
        return []
    mask, names = listed_by(node.value), [each.id for each in target.elts if isinstance(each, ast.Name)]
    if mask is None or len(names) != 2 or len(target.elts) != 2 or not _TWO.search(place.failure.message):
        return []
    there, edits = fresh("there", names_in(source.tree) | locals_of(function)), list[Edit]()
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id in names]
    for each in (n for n in every if n not in target.elts):
        method = source.parents.get(each)
        call = source.parents.get(method) if isinstance(method, ast.Attribute) else None
        asks = isinstance(method, ast.Attribute) and method.attr in ("min", "max")
        if not asks or not isinstance(call, ast.Call) or call.func is not method or call.args or call.keywords:
            return []
        at = names.index(each.id)
        held = f"{there}.any({1 - at}).long()"
        last = f"({there}.shape[{at}] - 1 - {held}.flip(0).argmax())"
        edits.append(source.replace(call, f"{held}.argmax()" if called(call) == "min" else last))
    inside = [n for part in function.body for n in within(part)]
    kept = f"{place.source.bracketed(mask)}.clone()" if is_written(inside, path_of(mask)) else place.text(mask)
    return [source.replace(node, f"{there} = {kept}"), *edits] if edits else []
