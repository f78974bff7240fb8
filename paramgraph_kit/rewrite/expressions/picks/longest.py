"""The longest of several lengths, where a mask of that width is laid over a tensor: the tensor is as wide.

``mask = torch.arange(lengths.max().item())[None] < lengths[:, None]`` with ``x * mask[..., None]`` behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import Edit, first_line, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, integer

PADDED = "# padded to the longest"  # at the end of a line, by which what it takes for granted is found


def as_wide_as_masked(place: Place) -> list[Edit]:
    """``lengths.max().item()`` becomes ``x.shape[1]``, where it only makes the mask of ``x``."""
    node, function = place.statement, place.source.function_of(place.statement)
    reads = [n for n in heads(node) if isinstance(n, ast.Call) and _is_longest(place, n)]
    if function is None or len(reads) != 1 or not isinstance(node, ast.Assign) or node.lineno != node.end_lineno:
        return []
    whole = reads[0] is node.value
    name = path_of(node.targets[0]) if whole else ""
    every = [n for part in function.body for n in within(part)]
    uses = (
        [n for n in every if isinstance(n, ast.Name) and n.id == name and n is not node.targets[0]] if whole else reads
    )
    if not uses or not all(_makes_a_mask(place, n) for n in uses):
        return []
    makers = {place.source.statement_of(n) for n in uses}
    masks = {path_of(m.targets[0]) for m in makers if isinstance(m, ast.Assign) and len(m.targets) == 1}
    if "" in masks or len(masks) != 1 or len(makers) != 1:
        return []
    width = _width(place, every, masks.pop())
    line = place.source.lines[first_line(node) - 1]
    if not width or "#" in line:
        return []
    end = len(line.rstrip())
    told = Edit(node.lineno, end, node.lineno, end, f"  {PADDED}")
    return [place.source.replace(reads[0], width), told]


def _is_longest(place: Place, node: ast.Call) -> bool:
    """``lengths.max().item()``, ``int(lengths.max())`` and ``torch.max(lengths).item()``."""
    read = read_of(place, node)
    if not isinstance(read, ast.Call) or called(read) not in ("max", "amax") or read.keywords:
        return False
    return len(read.args) == (path_of(read.func) in ("torch.max", "torch.amax"))


def _makes_a_mask(place: Place, node: ast.expr) -> bool:
    """``torch.arange(n) < lengths[:, None]``, also with ``.expand(len(lengths), n)``: ``n`` is only its width."""
    above, ranged = place.source.parents.get(node), False
    while isinstance(above, (ast.expr, ast.keyword)):
        if isinstance(above, ast.Call) and called(above) == "arange":
            ranged |= above.args == [node] and path_of(above.func) == "torch.arange"
        elif isinstance(above, ast.Call) and called(above) in ("expand", "repeat", "view", "reshape"):
            ranged |= any(isinstance(n, ast.Call) and called(n) == "arange" for n in ast.walk(above.func))
        if isinstance(above, ast.Compare):
            return ranged and len(above.ops) == 1 and isinstance(above.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        node, above = above, place.source.parents.get(above)  # type: ignore[assignment]
    return False


def _width(place: Place, every: Sequence[ast.AST], mask: str) -> str:
    """How wide what a mask is laid over is, as it is written before the mask is made; "" where that is not known."""
    form, found = place.tensors.get(mask), set[str]()
    for node in every:
        for over, by in _laid(node):
            if mask not in names_in(by):
                continue
            axis = 1 if _has_another_behind(by) else -1
            held = place.tensors.get(path_of(over))
            stores = [
                n for n in every if isinstance(n, ast.Name) and n.id == path_of(over) and n.ctx.__class__ is ast.Store
            ]
            before = all(n.lineno < place.statement.lineno for n in stores)
            if form is None or held is None or not before or len(held.shape) < 2 or len(form.shape) != 2:
                return ""
            if held.shape[axis] != form.shape[1]:
                return ""
            found.add(f"{path_of(over)}.shape[{axis}]")
    return min(found) if found else ""


def _laid(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """A tensor and the mask over it, both as written: ``x * m``, ``x.masked_fill(~m, 0)``, ``torch.where(m, x, 0)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield node.left, node.right
    elif isinstance(node, ast.Call) and called(node) in ("masked_fill", "masked_fill_") and node.args:
        if isinstance(node.func, ast.Attribute) and path_of(node.func.value) != "torch":
            yield node.func.value, node.args[0]
    elif isinstance(node, ast.Call) and path_of(node.func) == "torch.where" and len(node.args) == 3:
        yield node.args[1], node.args[0]


def _has_another_behind(mask: ast.expr) -> bool:
    """``m[..., None]``, ``m.unsqueeze(-1)`` and ``m[:, :, None]``."""
    for node in ast.walk(mask):
        if isinstance(node, ast.Call) and called(node) == "unsqueeze" and node.args:
            return integer(node.args[0]) in (-1, 2)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            last = node.slice.elts[-1]
            return isinstance(last, ast.Constant) and last.value is None
    return False
