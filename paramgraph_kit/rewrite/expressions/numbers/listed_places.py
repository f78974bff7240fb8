"""Lists of places that a loop finds one after the other, as farthest point sampling has them: tensors in a list."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import Edit, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, integer

_MADE = ("torch.tensor", "torch.as_tensor")


def keep_places(place: Place) -> list[Edit]:
    """``picked.append(d.argmax().item())`` keeps the tensor, which ``x[picked[-1]]`` and ``x[picked]`` pick by."""
    node, function, source = place.statement, place.source.function_of(place.statement), place.source
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "append" or len(call.args) != 1 or function is None:
        return []
    name = call.func.value if isinstance(call.func, ast.Attribute) else None
    read = read_of(place, call.args[0]) if isinstance(call.args[0], ast.Call) else None
    if not isinstance(name, ast.Name) or name.id in arguments_of(function) or not _is_a_place(read):
        return []
    assert read is not None
    edits, begun = [source.replace(call.args[0], place.text(read))], 0
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id == name.id]
    for each in every:
        above = source.parents.get(each)
        if each is name:
            continue
        if isinstance(each.ctx, ast.Store):
            listed = above.value if isinstance(above, ast.Assign) and above.targets == [each] else None
            begins = [integer(n) for n in listed.elts] if isinstance(listed, ast.List) else [None]
            if any(number is None or number < 0 for number in begins) or not isinstance(listed, ast.List):
                return []
            begun += 1
            there = "torch.full((), {}, dtype=torch.long, device=" + place.device + ")"
            edits += [source.replace(n, there.format(place.text(n))) for n in listed.elts]
        elif isinstance(above, ast.Subscript) and above.slice is each:
            edits.append(source.replace(each, f"torch.stack({name.id})"))
        elif isinstance(above, ast.Subscript) and above.value is each and integer(above.slice) is not None:
            outer = source.parents.get(above)
            if not isinstance(outer, ast.Subscript) or outer.slice is not above or not isinstance(outer.ctx, ast.Load):
                return []
            edits.append(source.replace(outer, f"{place.text(outer.value)}[{place.text(above)}.reshape(1)][0]"))
        elif isinstance(above, ast.Call) and path_of(above.func) in _MADE and above.args == [each]:
            kinds = {o.arg for o in above.keywords} - {"device"}
            if kinds:
                return []
            edits.append(source.replace(above, f"torch.stack({name.id})"))
        elif not (isinstance(above, ast.Call) and called(above) == "len"):
            return []
    return edits if begun == 1 else []


def _is_a_place(node: ast.expr | None) -> bool:
    """``d.argmax()``: never below zero, and an index by its type."""
    return isinstance(node, ast.Call) and called(node) in ("argmax", "argmin") and not node.keywords
