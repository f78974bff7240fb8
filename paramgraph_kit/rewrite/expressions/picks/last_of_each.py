"""One of each row, where the device says: ``torch.stack([h[b, n - 1] for b, n in enumerate(lengths.tolist())])``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called, renamed

_HOST = ("tolist", "cpu", "numpy")


def pick_in_each_row(place: Place) -> list[Edit]:
    """The same by two tensors of places: the rows, and where in each."""
    found = []
    for call in place.calls("stack"):
        comp = call.args[0] if len(call.args) == 1 and not call.keywords else None
        if path_of(call.func) != "torch.stack" or not isinstance(comp, (ast.ListComp, ast.GeneratorExp)):
            continue
        each, elt = comp.generators[0], comp.elt
        lengths = _lengths(each) if len(comp.generators) == 1 and not each.ifs else None
        if lengths is None or not isinstance(elt, ast.Subscript) or not isinstance(elt.slice, ast.Tuple):
            continue
        assert isinstance(each.target, ast.Tuple)
        row, number = map(path_of, each.target.elts)
        first, *rest = elt.slice.elts
        if path_of(first) != row or len(rest) != 1 or {row, number} & names_in(elt.value):
            continue
        if names_in(rest[0]) != {number} or any(isinstance(n, (ast.Call, ast.Slice)) for n in ast.walk(rest[0])):
            continue
        text = place.text(lengths)
        rows = f"torch.arange(len({text}), device={place.source.bracketed(lengths)}.device)"
        at = renamed(place.text(rest[0]), {number: text})
        found.append(place.source.replace(call, f"{place.source.bracketed(elt.value)}[{rows}, {at}]"))
    return found


def _lengths(each: ast.comprehension) -> ast.expr | None:
    """``lengths`` of ``for b, n in enumerate(lengths.tolist())``."""
    over, target = each.iter, each.target
    if not isinstance(over, ast.Call) or called(over) != "enumerate" or len(over.args) != 1:
        return None
    if not isinstance(target, ast.Tuple) or not all(isinstance(n, ast.Name) for n in target.elts):
        return None
    value, read = over.args[0], False
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and called(value) in _HOST:
        value, read = value.func.value, True
    return value if read and len(target.elts) == 2 and isinstance(value, (ast.Name, ast.Attribute)) else None
