"""What the parts of an index take, and how wide a slice is, where its text tells.

``p : p + t`` and ``p - t : p``, also by way of a name for an end.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from paramgraph_kit.rewrite.source.edits import Source, within


def width_at(source: Source, node: ast.Subscript, number: int) -> str:
    """The width of one of a subscript's parts, or ""."""
    parts = parts_of(node)
    part = parts[number] if number < len(parts) else None
    if not isinstance(part, ast.Slice) or part.step is not None or part.lower is None or part.upper is None:
        return ""
    return width(source, node, part.lower, part.upper)


def parts_of(node: ast.Subscript) -> list[ast.expr]:
    """The parts of an index."""
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def with_all_of(source: Source, node: ast.Subscript, numbers: Collection[int]) -> tuple[str, list[int]] | None:
    """A tensor with all that some parts take a piece of, by its other parts, and the dimensions of these in it.

    ``self.k[layer]`` and 2 of the last part of ``self.k[layer, :, :, a:b]``. None where a part picks otherwise.
    """
    parts, kept = parts_of(node), list[str]()
    for at, part in enumerate(parts):
        if not _picks_one(part) and not isinstance(part, ast.Slice) and not _is_rest(part):
            return None
        kept.append(":" if at in numbers else source.text(part))
    while kept and kept[-1] in (":", "..."):
        kept.pop()
    dims = [sum(isinstance(part, ast.Slice) for part in parts[:number]) for number in numbers]
    if any(map(_is_rest, parts[: max(numbers)])):
        dims = [-sum(isinstance(part, ast.Slice) for part in parts[number:]) for number in numbers]
    return source.text(node.value) + f"[{', '.join(kept)}]" * bool(kept), dims


def picked_by(node: ast.Subscript) -> list[str]:
    """The names of what an index takes one of, as far as these are numbers: ``layer`` of ``k[layer, :, a:b]``."""
    return [ast.unparse(part) for part in parts_of(node) if isinstance(part, (ast.Name, ast.Attribute))]


def _picks_one(part: ast.expr) -> bool:
    is_number = isinstance(part, ast.Constant) and type(part.value) is int
    return is_number or isinstance(part, (ast.Name, ast.Attribute))


def _is_rest(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and part.value is ...


def takes_all(part: ast.AST | None) -> bool:
    """Whether a part of an index is ``:``."""
    return isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None


def may_be_negative(source: Source, node: ast.expr, part: ast.Slice) -> bool:
    """Whether an end of a slice takes something away, also by way of a name: eager counts ``n - 1`` from the end."""
    ends = [end for end in (part.lower, part.upper) if end is not None]
    return any(_takes_away(each) for end in ends for each in _meanings(source, node, end))


def _takes_away(node: ast.expr) -> bool:
    below = any(isinstance(n, (ast.Sub, ast.USub)) for n in ast.walk(node))
    return below and not any(isinstance(n, ast.Call) and _is_bounded(n) for n in ast.walk(node))


def _is_bounded(call: ast.Call) -> bool:
    """``max(n - 1, 0)`` and ``(n - 1).clamp(min=0)``."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return name in ("clamp", "clamp_min", "relu", "abs", "maximum") or (name == "max" and len(call.args) > 1)


def columns_of(node: ast.Subscript) -> ast.expr | None:
    """``keep`` of ``edge_index[:, keep]``."""
    parts = parts_of(node)
    return parts[1] if len(parts) == 2 and takes_all(parts[0]) else None


def width(source: Source, node: ast.expr, low: ast.expr, high: ast.expr) -> str:
    """How far it is from one expression to another one, or ""."""
    for first in _meanings(source, node, low):
        for last in _meanings(source, node, high):
            if found := _between(source, first, last):
                return found
    return ""


def _between(source: Source, low: ast.expr, high: ast.expr) -> str:
    if isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add):
        for one, other in ((high.left, high.right), (high.right, high.left)):
            if ast.dump(one) == ast.dump(low):
                return source.text(other)
    if isinstance(low, ast.BinOp) and isinstance(low.op, ast.Sub) and ast.dump(low.left) == ast.dump(high):
        return source.text(low.right)
    return ""


def _meanings(source: Source, node: ast.expr, end: ast.expr) -> list[ast.expr]:
    """An end of a slice, and what a name was given, if once and in the same function."""
    function = source.function_of(node)
    if not isinstance(end, ast.Name) or function is None:
        return [end]
    every = [n for part in function.body for n in within(part)]
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == end.id and isinstance(n.ctx, ast.Store)]
    made = [n for n in every if isinstance(n, ast.Assign) and n.targets == stores]
    return [end, *(n.value for n in made if len(stores) == 1)]
