"""What is put, in its order, where a mask is: ``x[mask] = rows`` becomes ``x.masked_scatter_(mask[..., None], rows)``.

``embeds[ids == IMAGE] = features`` and ``x[bad] = fresh[: bad.sum()]`` look for the places of the mask, of which only
the device knows how many there are; ``masked_scatter_`` takes as many rows as it needs, and asks for nothing.
"""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.expressions.picks.shapes import MASKS, form_of
from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import only_sized
from paramgraph_kit.rewrite.source.place import Place, called, integer, target_of

_SAME = ("to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "clone", "detach", "cuda")
_SHAPES = ("reshape", "view")


def put_in_order(place: Place) -> list[Edit]:
    """``x[mask] = rows``, and ``x[mask] = rows[: mask.sum()]``."""
    text = _put(place, place.statement, {})
    return [place.source.replace(place.statement, text)] if text else []


def put_as_many(place: Place) -> list[Edit]:
    """``n = int(mask.sum())`` before ``x[mask] = rows[:n]`` is asked for nothing."""
    node, function = place.statement, place.source.function_of(place.statement)
    name = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(name, ast.Name) or function is None:
        return []
    mask = _counted(place, node.value)
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id == name.id]
    reads = [n for n in every if n is not name]
    if not mask or not reads or any(not isinstance(n.ctx, ast.Load) for n in reads):
        return []
    puts = dict.fromkeys(place.source.statement_of(n) for n in reads)
    written = {put: _put(place, put, {name.id: mask}) for put in puts}
    if not all(written.values()) or len(puts) != len(reads):
        return []
    edits = [place.source.replace(put, text) for put, text in written.items()]
    return [*place.source.without_all([node]), *edits]


def _counted(place: Place, node: ast.expr) -> str:
    """``mask`` of ``mask.sum()``, ``int(mask.sum())`` and ``mask.sum().item()``."""
    while isinstance(node, ast.Call) and called(node) in ("int", "item"):
        inner = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
        if inner is None:
            return ""
        node = inner
    if not isinstance(node, ast.Call) or called(node) not in ("sum", "count_nonzero") or node.keywords:
        return ""
    if isinstance(node.func, ast.Attribute) and path_of(node.func.value) != "torch":
        return place.text(node.func.value) if not node.args else ""
    return place.text(node.args[0]) if len(node.args) == 1 else ""


def _put(place: Place, node: ast.stmt, numbers: dict[str, str]) -> str:
    """What a statement that puts rows into a mask becomes; ``numbers`` are names of how many there are in one."""
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Subscript) or not path_of(target.value):
        return ""
    mask = target.slice
    one, all_of = form_of(place, mask) if isinstance(mask, MASKS) else None, form_of(place, target.value)
    if one is None or all_of is None or len(one.shape) > len(all_of.shape):
        return ""
    text, value = place.text(mask), node.value
    if any(isinstance(n, ast.Subscript) and place.text(n.slice) == text for n in ast.walk(value)):
        return ""  # rows of the same mask
    more = len(all_of.shape) - len(one.shape)
    cut = _without_cut(place, value, text, numbers)
    if cut is None or _rank(place, cut) != more + 1:
        return ""
    if names_in(value) & names_in(target.value) - only_sized(place.source, value):
        return ""
    spread = place.source.bracketed(mask) + (f"[..., {', '.join(['None'] * more)}]" if more else "")
    return f"{place.text(target.value)}.masked_scatter_({spread}, {place.text(cut)})"


def _without_cut(place: Place, value: ast.expr, mask: str, numbers: dict[str, str]) -> ast.expr | None:
    """``rows`` of ``rows[: mask.sum()]``; None where it is cut in another way."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return value
    part = value.slice
    if part.lower is not None or part.step is not None or part.upper is None:
        return None
    of = numbers.get(path_of(part.upper)) or _counted(place, part.upper)
    return value.value if of == mask else None


def _rank(place: Place, node: ast.expr) -> int:
    """How many dimensions a tensor has, as far as that is told."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _SAME:
        node = node.func.value
    if isinstance(node, ast.Call) and called(node) in _SHAPES and isinstance(node.func, ast.Attribute):
        return len(node.args) if node.args and integer(node.args[0]) == -1 else 0
    if isinstance(node, ast.Call) and called(node) == "flatten" and isinstance(node.func, ast.Attribute):
        ends = [integer(each) for each in node.args]
        return _rank(place, node.func.value) - 1 if ends == [0, 1] else 0
    if isinstance(node, ast.Call) and len(node.args) == 1 and path_of(node.func) and not node.keywords:
        held = place.space.get(path_of(node.func)) or place.attributes.get(called(node))
        return _rank(place, node.args[0]) if isinstance(held, torch.nn.Module) else 0
    form = form_of(place, node) if isinstance(node, ast.Name) else None
    return len(form.shape) if form is not None else 0
