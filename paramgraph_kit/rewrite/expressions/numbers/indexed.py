"""An index that the device has found, among slices and numbers: ``x[:, i]``, ``x[0, i]``, ``y[i] = 0``."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.expressions.numbers.filled import on_device
from paramgraph_kit.rewrite.source.edits import Edit, heads, path_of
from paramgraph_kit.rewrite.source.loop_names import counted_around
from paramgraph_kit.rewrite.source.place import Place, called, integer, is_number, target_of
from paramgraph_kit.rewrite.source.widths import takes_all
from paramgraph_kit.rewrite.source.writes import writes_through


def look_up_there(place: Place) -> list[Edit]:
    """``x[:, i]`` becomes ``x[:, i.reshape(1)].squeeze(1)``, and ``x.select(1, i)`` what an index selects.

    So does ``x[int(i)]``, as ``x[i.reshape(1)][0]``: with a tensor of no dimension torch reads the number all the same.
    """
    found = []
    for node in heads(place.statement) if not writes_through(place) else ():
        if isinstance(node, ast.Subscript) and (parts := _parts(place, node)):
            if not isinstance(node.ctx, ast.Load):
                found += _added_to(place, node, parts) if len(parts) > 1 else []
            elif text := _picked(place, node, parts):
                found.append(place.source.replace(node, text))
        elif isinstance(node, ast.Call) and called(node) == "select" and (text := _selected(place, node)):
            found.append(place.source.replace(node, text))
    return found


def _parts(place: Place, node: ast.Subscript) -> list[ast.expr]:
    """The parts of an index, of one alone where it is a number that is read there, of a tensor and not of a list."""
    if isinstance(node.slice, ast.Tuple):
        return node.slice.elts
    path = path_of(node.value)
    outer = bool(path) and not place.is_local(path) and isinstance(place.value(path), torch.Tensor)
    return [node.slice] if isinstance(node.slice, ast.Call) and (outer or path in place.tensors) else []


def _added_to(place: Place, node: ast.Subscript, parts: list[ast.expr]) -> list[Edit]:
    """``x[1, i] += v``, which is one element."""
    there = [(part, known[0]) for part in parts if (known := _index(place, part)) is not None]
    rest = [part for part in parts if not any(part is one for one, _ in there)]
    if not isinstance(place.source.parents.get(node), ast.AugAssign) or any(integer(part) is None for part in rest):
        return []
    return [place.source.replace(part, f"{_bracketed(text)}.reshape(1)") for part, text in there]


def _picked(place: Place, node: ast.Subscript, parts: list[ast.expr]) -> str:
    there = [(part, known[0]) for part in parts if (known := _index(place, part)) is not None]
    rest = [part for part in parts if not any(part is one for one, _ in there)]
    if len(there) == len(rest) == 1 and parts[0] is rest[0] and place.text(rest[0]) == "...":
        return f"{place.source.bracketed(node.value)}[..., {_bracketed(there[0][1])}.reshape(1)].squeeze(-1)"
    slices = all(isinstance(part, ast.Slice) for part in rest)
    if not there or not (slices or all(integer(part) is not None for part in rest)):
        return ""
    if slices and rest and len(there) > 1:
        return ""  # taken together, they would come first
    given = {id(part): f"{_bracketed(text)}.reshape(1)" for part, text in there}
    texts = [given.get(id(part)) or place.text(part) for part in parts]
    picked = f"{place.source.bracketed(node.value)}[{', '.join(texts)}]"
    at = next(n for n, part in enumerate(parts) if part is there[0][0]) if slices and rest else 0
    return f"{picked}.squeeze({at})" if at else f"{picked}[0]"


def _selected(place: Place, call: ast.Call) -> str:
    if not isinstance(call.func, ast.Attribute) or call.keywords:
        return ""
    of_torch = path_of(call.func) == "torch.select"
    if len(call.args) != 2 + of_torch:
        return ""
    x = place.source.bracketed(call.args[0] if of_torch else call.func.value)
    dim, index = call.args[-2:]
    known = _index(place, index)
    if known is None or integer(dim) is None:
        return ""
    at = place.text(dim)
    return f"{x}.index_select({at}, {_bracketed(known[0])}.reshape(1)).squeeze({at})"


def fill_there(place: Place) -> list[Edit]:
    """``y[i] = 0`` and ``y[:, i] = 0`` become ``y.index_fill_(0, i.reshape(1), 0)``, which copies nothing.

    ``y[i] = x[j]``, which is a tensor's, becomes ``y.index_put_((i.reshape(1),), x[j])``.
    """
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Subscript):
        return []
    value = node.value
    if isinstance(value, ast.Call) and path_of(value.func) == "torch.full" and place.text(value.args[0]) == "()":
        value = value.args[1]  # the number as a tensor, which was written for that
    parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    there = [(n, known[0]) for n, part in enumerate(parts) if (known := _index(place, part)) is not None]
    fixed = {n: number for n, part in enumerate(parts) if (number := integer(part)) is not None}
    whole = list(filter(takes_all, parts))
    if len(there) != 1 or len(whole) + len(fixed) != len(parts) - 1:
        return []
    (dim, text), x = there[0], place.source.bracketed(target.value)
    counts = isinstance(value, ast.Name) and value.id in counted_around(place, node)
    if not is_number(value) and not counts:
        row = _row(place, value, target.value) if len(parts) == 1 else ""
        return [place.source.replace(node, f"{x}.index_put_(({_bracketed(text)}.reshape(1),), {row})")] if row else []
    x += "".join(f".select({n}, {fixed[n]})" for n in sorted(fixed, reverse=True))
    dim -= sum(n < dim for n in fixed)
    return [place.source.replace(node, f"{x}.index_fill_({dim}, {_bracketed(text)}.reshape(1), {place.text(value)})")]


def _row(place: Place, value: ast.expr, owner: ast.expr) -> str:
    """``scores[j]`` of a tensor of the device, as what the owner of a place is made of; "" of anything else."""
    root = value
    while isinstance(root, ast.Subscript):
        root = root.value
    forms = [place.tensors.get(n.id) if isinstance(n, ast.Name) else None for n in (root, owner)]
    if forms[0] is None or forms[0].device == "cpu":
        return ""
    same = forms[1] is not None and forms[0].dtype == forms[1].dtype
    return place.text(value) if same else f"{place.source.bracketed(value)}.to({place.source.bracketed(owner)}.dtype)"


def _element(place: Place, part: ast.expr) -> tuple[str, str] | None:
    """``top[j]`` of whole numbers of the device, at a place that the host knows."""
    if not isinstance(part, ast.Subscript) or not isinstance(part.value, ast.Name):
        return None
    form, at = place.tensors.get(part.value.id), part.slice
    known = integer(at) is not None or (isinstance(at, ast.Name) and at.id in counted_around(place, place.statement))
    there = form is not None and form.device != "cpu" and len(form.shape) == 1
    whole = form is not None and not (form.dtype.is_floating_point or form.dtype.is_complex or form.dtype is torch.bool)
    return (place.text(part), "int") if known and there and whole else None


def _index(place: Place, part: ast.expr) -> tuple[str, str] | None:
    """An index that is a whole number of the device's."""
    known = None if isinstance(part, ast.Slice) else on_device(place, part) or _element(place, part)
    return known if known is not None and known[1] == "int" else None


def _bracketed(text: str) -> str:
    node = ast.parse(text, mode="eval").body
    has_them = node.col_offset > 0 or isinstance(node, (ast.Name, ast.Subscript))
    return text if has_them else f"({text})"
