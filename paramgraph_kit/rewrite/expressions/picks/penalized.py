"""Elements that a set of the device's numbers picks, one in each round, are changed all at once where a mask has them.

``for t in set(ids[0].tolist()): scores[0, t] /= 1.2`` becomes ``there``, which is true at each of ``ids[0]``, and
``scores[0].copy_(torch.where(there, scores[0] / 1.2, scores[0]))``; ``if scores[0, t] < 0: ... else: ...`` there
chooses by ``torch.where``. Only of a set or of ``unique``: a list may have a number twice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.expressions.picks.distinct import given_to_unique
from paramgraph_kit.rewrite.expressions.picks.shapes import form_of
from paramgraph_kit.rewrite.source.edits import Edit, combined, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, target_of
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.source.widths import takes_all

_TO_HOST = ("tolist", "cpu", "numpy", "detach")


def change_those_there(place: Place) -> list[Edit]:
    """``for t in set(ids.tolist()): scores[t] /= 1.2`` changes all of ``scores`` where a mask of ``ids`` is true."""
    loop, function = place.statement, place.source.function_of(place.statement)
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or function is None or loop.orelse:
        return []
    picked, name = _numbers(loop.iter), loop.target.id
    if picked is None or not is_pure(place, picked) or not loop.body:
        return []
    inside = {n for part in loop.body for n in ast.walk(part)}
    after = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and n not in inside]
    if any(n is not loop.target for n in after):
        return []
    rows = {text for part in loop.body for text in _rows(place, part, name)}
    there = fresh("there", place.taken)
    changed = [_changed(place, part, name, there) for part in loop.body]
    if len(rows) != 1 or not all(changed):
        return []
    row = rows.pop()
    index = place.source.bracketed(picked)
    lines = [f"{there} = torch.zeros({row}.shape[-1:], dtype=torch.bool, device={row}.device)"]
    lines.append(f"{there} = {there}.index_fill(0, {index}.flatten(), True)")
    lines += [line for each in changed for line in each]
    return [place.source.replace(loop, f"\n{place.source.indent(loop)}".join(lines))]


def _numbers(node: ast.expr) -> ast.expr | None:
    """``ids`` of ``set(ids.tolist())``, ``ids.unique()`` and ``torch.unique(ids).tolist()``."""
    as_set = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "set"
    if as_set and isinstance(node, ast.Call):
        if len(node.args) != 1 or node.keywords:
            return None
        given, found = node.args[0], False
        while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and called(given) in _TO_HOST:
            given, found = given.func.value, True
        return given if found else None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _TO_HOST:
        node = node.func.value
    options = isinstance(node, ast.Call) and bool(node.keywords)
    return None if options else given_to_unique(node)


def _rows(place: Place, part: ast.AST, name: str) -> Iterator[str]:
    """What is picked from at ``name``, as ``scores[0]`` of ``scores[0, t]``."""
    for node in ast.walk(part):
        if isinstance(node, ast.Subscript) and (row := _row(place, node, name)):
            yield row


def _row(place: Place, node: ast.Subscript, name: str) -> str:
    """``scores[0]`` of ``scores[0, t]``, where ``t`` is along the last dimension; "" where that is not told."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    form, last = form_of(place, node.value), parts[-1]
    if form is None or len(form.shape) != len(parts) or form.device == "cpu" or not isinstance(node.value, ast.Name):
        return ""
    if not isinstance(last, ast.Name) or last.id != name or any(name in names_in(n) for n in parts[:-1]):
        return ""
    if not all(_is_plain(place, n) for n in parts[:-1]):
        return ""
    rest = ", ".join(map(place.text, parts[:-1]))
    return f"{node.value.id}[{rest}]" if rest else node.value.id


def _is_plain(place: Place, node: ast.expr) -> bool:
    """Whether an index takes a view: a number, or all."""
    if isinstance(node, ast.Slice):
        return takes_all(node)
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Constant):
        return type(inner.value) is int
    loops = [n for n in place.loops() if isinstance(n, ast.For) and isinstance(n.iter, ast.Call)]
    counts = [n.target for n in loops if isinstance(n.iter, ast.Call) and called(n.iter) == "range"]
    return isinstance(inner, ast.Name) and any(isinstance(n, ast.Name) and n.id == inner.id for n in counts)


def _changed(place: Place, part: ast.stmt, name: str, there: str) -> list[str]:
    """The lines that do for all of a row what one round does for one of it, or nothing."""
    if isinstance(part, (ast.Assign, ast.AugAssign)):
        found = _value(place, part, name)
        return [_put(*found, there)] if found is not None else []
    if not isinstance(part, ast.If) or not all(len(block) == 1 for block in (part.body, part.orelse or part.body)):
        return []
    one, other = _value(place, part.body[0], name), _value(place, part.orelse[0], name) if part.orelse else None
    test = _of_row(place, part.test, name)
    if one is None or not test or not isinstance(part.test, ast.Compare) or (part.orelse and other is None):
        return []
    if other is not None and other[0] != one[0]:
        return []
    return [_put(one[0], f"torch.where({test}, {one[1]}, {other[1] if other is not None else one[0]})", there)]


def _put(row: str, value: str, there: str) -> str:
    return f"{row}.copy_(torch.where({there}, {value}, {row}))"


def _value(place: Place, part: ast.stmt, name: str) -> tuple[str, str] | None:
    """The row that an assignment writes one of, and what it writes there, of all of it."""
    target = target_of(part)
    target = part.target if isinstance(part, ast.AugAssign) else target
    if not isinstance(part, (ast.Assign, ast.AugAssign)) or not isinstance(target, ast.Subscript):
        return None
    row, text = _row(place, target, name), _of_row(place, part.value, name)
    if not row or not text:
        return None
    if isinstance(part, ast.AugAssign):
        text = combined(part, row, text)
    return (row, text) if text else None


def _of_row(place: Place, node: ast.expr, name: str) -> str:
    """An expression of one of a row, as one of all of it; "" where it reads the number for anything else."""
    if not is_pure(place, node):
        return ""
    picks = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and _row(place, n, name)]
    inside = {part for each in picks for part in ast.walk(each)}
    if any(isinstance(n, ast.Name) and n.id == name and n not in inside for n in within(node)):
        return ""
    calls = [n for n in within(node) if isinstance(n, ast.Call) and path_of(n.func)]
    if any(inside & set(ast.walk(call)) for call in calls):
        return ""  # what it does with one number is not told
    text = place.text(node)
    for each in sorted(picks, key=lambda n: -len(place.text(n))):
        text = text.replace(place.text(each), _row(place, each, name))
    return text
