"""Lists of places that are cut to what there is room for, as tokens of an expert, once they are masks.

``if idx.numel() > room: idx = idx[w[idx].topk(room).indices]`` leaves the mask at the largest of what it holds,
``idx = idx[:room]`` at the first; where fewer are there, all of them stay.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from paramgraph_kit.rewrite.expressions.picks.masks import bracketed
from paramgraph_kit.rewrite.expressions.picks.rows import counts
from paramgraph_kit.rewrite.source.edits import Edit, names_in
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, integer, target_of


def limits_of(place: Place, listed: ast.stmt, name: str) -> dict[ast.stmt, list[Edit]]:
    """What stands for the statements behind a list of places that cut it, by statement."""
    above = place.source.parents.get(listed)
    block = next((each for part in ("body", "orelse") if listed in (each := getattr(above, part, []) or [])), [])
    found = dict[ast.stmt, list[Edit]]()
    for node in block[block.index(listed) + 1 :] if block else ():
        lines = _limited(place, node, name)
        if isinstance(node, ast.If) and not lines and (room := _room(node, name)) is not None:
            lines = _all_of(place, node.body, name, place.text(room))
        if lines:
            found[node] = [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]
    return found


def _all_of(place: Place, body: Sequence[ast.stmt], name: str, room: str) -> list[str]:
    """What a branch does that cuts a list where it is too long; nothing where it does anything else."""
    lines, best = list[str](), set[str]()
    for node in body:
        new = (
            _limited(place, node, name, best) or _of_best(place, node, name, room) or _left_out(place, node, name, room)
        )
        if not new:
            return []
        lines += new
        best |= stored([node]) if new[0].endswith(".indices") else set()
    return lines if any(line.startswith(f"{name} = ") for line in lines) else []


def _room(node: ast.If, name: str) -> ast.expr | None:
    """``room`` of ``if idx.numel() > room:``."""
    test = node.test
    if node.orelse or not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Gt):
        return None
    return test.comparators[0] if counts(test.left, name) and name not in names_in(test.comparators[0]) else None


def _limited(place: Place, node: ast.stmt, name: str, best: Collection[str] = ()) -> list[str]:
    """``idx = idx[:room]``, and ``idx = idx[best]`` with places of the largest by now."""
    target, value = target_of(node), node.value if isinstance(node, ast.Assign) else None
    if not isinstance(target, ast.Name) or target.id != name or not isinstance(value, ast.Subscript):
        return []
    if not isinstance(value.value, ast.Name) or value.value.id != name or name in names_in(value.slice):
        return _best_of_itself(place, value, name)
    if isinstance(value.slice, ast.Slice):
        room = value.slice.upper
        if value.slice.lower or value.slice.step or room is None or (integer(room) or 0) < 0:
            return []
        return [f"{name} = {name} & ({name}.cumsum(0) <= {place.text(room)})"]
    if isinstance(value.slice, ast.Name) and value.slice.id in best:
        return [f"{name} = {name} & torch.zeros_like({name}).index_fill(0, {value.slice.id}, True)"]
    return []


def _best_of_itself(place: Place, value: ast.Subscript, name: str) -> list[str]:
    """``idx = idx[w[idx].topk(room).indices]``."""
    best = _largest(place, value.slice, name)
    of_it = isinstance(value.value, ast.Name) and value.value.id == name
    return [f"{name} = {name} & torch.zeros_like({name}).index_fill(0, {best}, True)"] if of_it and best else []


def _of_best(place: Place, node: ast.stmt, name: str, room: str) -> list[str]:
    """``best = w[idx].topk(room).indices`` and ``_, best = w[idx].topk(room)``."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[1], ast.Name):
        best, target = _largest(place, value, name, whole=True), target.elts[1]
    else:
        best = _largest(place, value, name)
    return [f"{place.text(target)} = {best}"] if isinstance(target, ast.Name) and best else []


def _largest(place: Place, value: ast.expr, name: str, *, whole: bool = False) -> str:
    """``w[idx].topk(room).indices`` of all, those that are not in the list last; ``whole``: without ``.indices``."""
    if not whole:
        second = isinstance(value, ast.Subscript) and integer(value.slice) == 1
        if not second and not (isinstance(value, ast.Attribute) and value.attr == "indices"):
            return ""
        assert isinstance(value, (ast.Attribute, ast.Subscript))
        value = value.value
    if not isinstance(value, ast.Call) or called(value) != "topk" or value.keywords:
        return ""
    given = [*([value.func.value] if isinstance(value.func, ast.Attribute) else []), *value.args]
    given = given[1:] if given and isinstance(given[0], ast.Name) and given[0].id == "torch" else given
    if len(given) != 2 or not isinstance(given[0], ast.Subscript) or name in names_in(given[1]):
        return ""
    of, at = given[0].value, given[0].slice
    if not isinstance(at, ast.Name) or at.id != name or name in names_in(of):
        return ""
    w = place.source.bracketed(of)
    return f"torch.where({name}, {w}, -torch.inf).topk(min({place.text(given[1])}, len({w}))).indices"


def _left_out(place: Place, node: ast.stmt, name: str, room: str) -> list[str]:
    """``dropped += idx.numel() - room``, where that many are more than there is room for."""
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add) or not isinstance(node.target, ast.Name):
        return []
    more = node.value
    if not isinstance(more, ast.BinOp) or not isinstance(more.op, ast.Sub) or not counts(more.left, name):
        return []
    if place.text(more.right) != room:
        return []
    total = node.target.id
    return [f"{total} = {total} + ({name}.sum() - {bracketed(room)}).clamp(min=0)"]
