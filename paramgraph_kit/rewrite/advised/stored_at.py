"""Advice for a store at a place that the device has found: ``x[i] = 0``, ``x[:, i] += row``, ``x[i].zero_()``.

``x[i.reshape(1)][0]``, which picks there, is a copy: what is written into that is lost.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.host.on_cpu import is_of_the_host, there_is
from paramgraph_kit.rewrite.source.edits import heads, path_of, within
from paramgraph_kit.rewrite.source.loop_names import counted_around
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, is_number, renamed
from paramgraph_kit.rewrite.source.widths import parts_of
from paramgraph_kit.rewrite.source.writes import paths_in_place, writes_through

_ASK = ("int", "len", "round", "item", "next", "pop", "index", "size")  # a number of the host's
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def put_there(place: Place) -> str:
    """Words for a line that writes at one place of a dimension, or into what it picks there."""
    if place.failure.code != "tensor-bound":
        return ""
    node = place.statement
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    target = targets[0] if len(targets) == 1 else None
    if isinstance(target, ast.Subscript) and isinstance(node, (ast.Assign, ast.AugAssign)) and _found(place, target):
        return _stored(place, node, target)
    return _written_through(place, target)


def _found(place: Place, node: ast.Subscript) -> tuple[int, int] | None:
    """The part of an index that the device may have found, if one alone among slices and numbers; its dimension."""
    parts = parts_of(node)
    if is_of_the_host(place, place.text(node.value)):
        return None
    found = [n for n, part in enumerate(parts) if _of_device(place, part)]
    others = [part for n, part in enumerate(parts) if n not in found and not isinstance(part, ast.Slice)]
    if len(found) != 1:
        return None
    if len(parts) == 2 and found[0] == 1 and place.text(parts[0]) == "...":
        return 1, -1
    at = found[0]  # each number ahead of it takes a dimension away
    counted = counted_around(place, place.statement)
    known = all(integer(part) is not None or path_of(part) in counted for part in others)
    return (at, sum(isinstance(part, ast.Slice) for part in parts[:at])) if known else None


def _of_device(place: Place, part: ast.expr) -> bool:
    if isinstance(part, ast.Call):
        return called(part) not in _ASK
    if not isinstance(part, (ast.Name, ast.Attribute, ast.BinOp)) or integer(part) is not None:
        return False
    path = path_of(part)
    known = bool(path) and not place.is_local(path) and isinstance(place.value(path), (int, slice))
    return path not in counted_around(place, place.statement) and not known


def _at(place: Place, node: ast.Subscript) -> tuple[str, int, str, str]:
    """A view with all of the dimension, which one that is, the index of one element, and the place by these."""
    at, dim = _found(place, node) or (0, 0)
    parts, x = parts_of(node), place.source.bracketed(node.value)
    rest = [":" if n == at else place.text(part) for n, part in enumerate(parts)]
    view = x if {*rest} <= {":", "..."} else f"{x}[{', '.join(rest)}]"
    index = f"{place.source.bracketed(parts[at])}.reshape(1)"
    return view, dim, index, f"{view}[{index}]" if dim == 0 else f"{view}.movedim({dim}, 0)[{index}]"


def _stored(place: Place, node: ast.Assign | ast.AugAssign, target: ast.Subscript) -> str:
    view, dim, index, there = _at(place, target)
    table, value = place.text(target.value), place.text(node.value)
    on_device = f", and have `{table}` on the device{there_is(place, table)}"
    if isinstance(node, ast.Assign) and is_number(node.value):
        return f"write there with `{view}.index_fill_({dim}, {index}, {value})`{on_device}"
    if isinstance(node, ast.AugAssign) and type(node.op) not in _SIGNS:
        return ""
    sign = f"{_SIGNS[type(node.op)]}=" if isinstance(node, ast.AugAssign) else "="
    loads = [n for n in ast.walk(node.value) if isinstance(n, ast.Subscript) and _found(place, n)]
    own = place.text(parts_of(target)[(_found(place, target) or (0, 0))[0]])
    picked = {place.text(n): f"{_at(place, n)[3]}[0]" for n in loads}
    same = {text: new for text, new in picked.items() if f"[{own}" in text or f" {own}]" in text}
    others = "".join(f", `{new}` for `{text}` if that is of the device" for text, new in picked.items() - same.items())
    value = renamed(value, same) if same else value
    kinds = f" (with `.to({table}.dtype)` if that is another one)" if sign == "=" else ""
    return f"write there with `{there} {sign} {value}`{kinds}{others}{on_device}"


def _written_through(place: Place, target: ast.expr | None) -> str:
    """``x[i].zero_()``, ``x[i][1] = 0`` and ``row = x[i]; row.zero_()``: the copy is written, and put back."""
    node, function = place.statement, place.source.function_of(place.statement)
    if isinstance(target, ast.Name) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
        if not writes_through(place) or function is None or not _found(place, node.value):
            return ""
        every = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt)]
        last = max((n.lineno for n in every if target.id in paths_in_place(within(n))), default=node.lineno)
        there = _at(place, node.value)[3]
        return (
            f"`{target.id} = {there}[0]`, which is a copy: behind line {last}, the last that writes it, "
            f"`{there} = {target.id}`"
        )
    for each in (n for n in heads(node) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)):
        if not _found(place, each) or not _is_base(place, each):
            continue
        there, name = _at(place, each)[3], fresh("part", place.taken)
        return (
            f"ahead of it `{name} = {there}[0]`, which is a copy, here `{name}` for `{place.text(each)}`, and behind "
            f"it `{there} = {name}`"
        )
    return ""


def _is_base(place: Place, node: ast.expr) -> bool:
    """Whether what is written in place is a part of this."""
    above: ast.AST | None = node
    while isinstance(below := above, ast.expr):
        above = place.source.parents.get(below)
        if isinstance(above, ast.Subscript) and above.value is below:
            if not isinstance(above.ctx, ast.Load):
                return True
        elif isinstance(above, ast.Attribute):
            call = place.source.parents.get(above)
            if isinstance(call, ast.Call) and call.func is above:
                if above.attr.endswith("_") and not above.attr.startswith("_"):
                    return True
                above = call
        else:
            return False
    return False
