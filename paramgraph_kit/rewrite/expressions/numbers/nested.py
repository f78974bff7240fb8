"""Tensors of numbers that the device has, written as lists of lists: ``torch.tensor([[c, -s], [s, c]])``."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import elements_of
from paramgraph_kit.rewrite.source.edits import Edit, names_in
from paramgraph_kit.rewrite.source.place import Form, Place, called, is_number
from paramgraph_kit.rewrite.source.pure import is_pure


def stack_the_numbers(place: Place) -> list[Edit]:
    """``torch.tensor([[c, -s], [s, 1.0]]).to(d)`` of scalars becomes ``torch.stack([c, -s, ...]).view(2, 2)``."""
    found = []
    for call in place.calls("tensor"):
        options = {option.arg for option in call.keywords}
        sizes = _sizes(call.args[0]) if len(call.args) == 1 and options <= {"device"} else None
        if not sizes or names_in(call.func) != {"torch"}:
            continue
        leaves = list(elements_of(call.args[0]))
        known = [_form(place, each) for each in leaves]
        forms = [each for each in known if each is not None]
        like = next((n for n, each in zip(leaves, known, strict=True) if each is not None), None)
        numbers = [each for each, form in zip(leaves, known, strict=True) if form is None]
        if like is None or not all(map(is_number, numbers)) or len({each.dtype for each in forms}) != 1:
            continue
        model = place.source.bracketed(like)
        parts = [
            place.text(each) if form is not None else f"torch.full_like({model}, {place.text(each)})"
            for each, form in zip(leaves, known, strict=True)
        ]
        text = f"torch.stack([{', '.join(parts)}])" + f".view({', '.join(map(str, sizes))})" * (len(sizes) > 1)
        text += ".detach()" * place.trains  # what is made of numbers has no history
        found.append(place.source.replace(_brought(place, call), text))
    return found


def _brought(place: Place, call: ast.Call) -> ast.expr:
    """``torch.tensor(...)`` with what brings it to the device."""
    node: ast.expr = call
    while isinstance(above := place.source.parents.get(node), ast.Attribute) and above.attr in ("to", "cuda"):
        outer = place.source.parents.get(above)
        if not isinstance(outer, ast.Call) or outer.keywords or len(outer.args) > 1:
            break
        node = outer
    return node


def _sizes(node: ast.expr) -> list[int]:
    """How many there are in each dimension; nothing where that is not the same everywhere."""
    if not isinstance(node, (ast.List, ast.Tuple)) or not node.elts:
        return []
    inner = [_sizes(each) for each in node.elts]
    listed = [isinstance(each, (ast.List, ast.Tuple)) for each in node.elts]
    if not any(listed):
        return [len(node.elts)]
    return [len(node.elts), *inner[0]] if all(listed) and inner[0] and all(n == inner[0] for n in inner) else []


def _form(place: Place, node: ast.expr) -> Form | None:
    """That of a scalar of the device, which an expression of scalars is; None where it is none."""
    forms = [place.tensors[name] for name in names_in(node) & place.tensors.keys()]
    calls = any(isinstance(n, ast.Call) and called(n) in ("item", "float", "int", "len") for n in ast.walk(node))
    if not forms or calls or not is_pure(place, node) or any(f.shape or f.device == "cpu" for f in forms):
        return None
    return forms[0] if all(f.dtype == forms[0].dtype and f.dtype.is_floating_point for f in forms) else None
