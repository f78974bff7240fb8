"""Advice for places that lists of the host's pick, and that are all changed alike: a mask that the host fills.

``for i, seen in enumerate(history): logits[i, seen] /= 1.2`` picks more in each step, and a tensor of them would be
larger; which places they are is of one size.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from paramgraph_kit.rewrite.advised.asks.masked_cuts import left_whole
from paramgraph_kit.rewrite.advised.host.drawn_in_rounds import drawn_as_a_mask
from paramgraph_kit.rewrite.source.edits import names_in, path_of
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_number, renamed, target_of

_ALIKE = frozenset("where clamp clip exp log abs sqrt minimum maximum relu masked_fill".split())  # noqa: SIM905
_MAKES = ("tensor", "as_tensor", "LongTensor")
_COMPUTED = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context, ast.Constant)
_CODES = ("branch-frozen", "size-frozen", "tensor-literal", "cpu-index", "scalar-assignment", "copy-to-gpu")


@dataclass(frozen=True, slots=True)
class _Marks:
    """What is written at the places, which lines find these, what the lines between compute of what lies there,
    and what else all of these read."""

    target: ast.Subscript
    value: ast.expr
    found: list[ast.Assign]
    computed: list[ast.Assign]
    read: set[str]


def marked_places(place: Place) -> str:
    """Complete lines where what is written comes of nothing but what lay there, and of numbers."""
    if place.failure.code not in _CODES:
        return ""
    loops = place.loops()
    block = list(loops[-1].body) if loops else _beside(place)
    marks = _marks(place, block, bool(loops))
    loop = loops[-1] if loops else None
    if marks is None or (loop is not None and not isinstance(loop, ast.For)):
        return ""
    row, whole = path_of(marks.target.value), ""
    if isinstance(loop, ast.For):
        whole = _gone_through(place, loop, row)
        own = stored([loop])
        if not whole and not isinstance(marks.value, ast.Constant) and not _is_in_rows(loop, marks.target):
            return ""  # a place that two rounds pick is changed twice
        if marks.read & (own - stored(marks.computed)) or names_in(loop.iter) & place.tensors.keys() - {whole, "len"}:
            return ""
    x = whole or row
    form = place.tensors.get(x)
    shape = ", ".join(map(str, form.shape)) if form is not None else f"*{x}.shape"
    flag, at = fresh("marked_in", place.taken), place.text(marks.target)
    mark = "marked" + at[len(row) :] if not whole else at
    again = f"the loop of line {loop.lineno}" if loop is not None else f"line {marks.target.lineno}"
    through = f" through `marked` in place of `{whole}`" if whole else ""
    names = {at: x, **({row: x} if whole else {})}
    lines = [f"{place.text(n.targets[0])} = {renamed(place.text(n.value), names)}" for n in marks.computed]
    lines.append(f"{x}.copy_(torch.where({flag}, {renamed(_text(place, marks.value), names)}, {x}))")
    here = "; ".join(lines)
    return (
        f"the host picks the places here, more or fewer in each step, and all are changed alike: give them as a mask. "
        f"Once `{flag} = torch.zeros({shape}, dtype=torch.bool, device={place.device})`, before each launch `marked = "
        f'torch.zeros_like({flag}, device="cpu")`, {again}{through} with nothing but `{mark} = True` and indices on '
        f"the CPU, and `{flag}.copy_(marked)`; here `{here}` in place of {again}"
    )


def _beside(place: Place) -> list[ast.stmt]:
    """The lines of the block that a statement stands in, from where the first of them finds what is picked."""
    above = place.source.parents.get(place.statement)
    body: list[ast.stmt] = getattr(above, "body", [])
    if place.statement not in body:
        return []
    at = body.index(place.statement)
    ends = [k for k in range(at, len(body)) if _written(place, body[k]) is not None]
    begins = [k for k in range(at, -1, -1) if _finds(place, body[k])]
    return body[begins[0] if begins else at : ends[0] + 1] if ends else []


def _marks(place: Place, block: list[ast.stmt], is_round: bool) -> _Marks | None:
    found, computed, written = list[ast.Assign](), list[ast.Assign](), list[tuple[ast.Subscript, ast.expr]]()
    block = list(block)
    while block:
        node = block.pop(0)
        one = _written(place, node)
        if isinstance(node, ast.If) and not node.orelse and is_round:
            if names_in(node.test) & place.tensors.keys():
                return None
            block[:0] = node.body
        elif isinstance(node, ast.Assign) and _finds(place, node):
            found.append(node)
        elif one is not None:
            written.append(one)
        elif isinstance(node, ast.Assign) and isinstance(target_of(node), ast.Name):
            computed.append(node)
        else:
            return None
    if len(written) != 1:
        return None
    (target, value) = written[0]
    at, row = place.text(target), path_of(target.value)
    known = {target.value.id} if isinstance(target.value, ast.Name) else set[str]()
    kept = stored(computed) if computed else set[str]()
    of_tensors = place.tensors.keys() - kept
    picked = names_in(target.slice)
    inside = [*ast.walk(target.slice)]
    parts = [n for n in inside if isinstance(n, ast.Subscript) and not _has_lists(place.value(path_of(n.value)))]
    entries = {*parts, *(n.value for n in parts)}  # a number of a list's, as `self.ats[0]`
    by_list = picked & stored(found) or any(_is_a_list(place, n) for n in inside if n not in entries)
    if not row or not by_list or (picked - stored(found)) & of_tensors:
        return None
    read = set[str]()
    for each in (value, *(n.value for n in computed)):
        tree = ast.parse(renamed(_text(place, each), {at: "_"}), mode="eval")
        read |= names_in(tree)
        if names_in(tree) & (known | stored(found) | (of_tensors - {"_"})) or not _is_alike(tree.body):
            return None
    return _Marks(target, value, found, computed, read)


def _written(place: Place, node: ast.stmt) -> tuple[ast.Subscript, ast.expr] | None:
    """What ``x[i, seen] = v`` and ``x[i, seen] /= v`` write, and where."""
    target = node.target if isinstance(node, ast.AugAssign) else target_of(node)
    if not isinstance(target, ast.Subscript) or not isinstance(node, (ast.Assign, ast.AugAssign)):
        return None
    if isinstance(node, ast.Assign):
        return target, node.value
    read = ast.parse(place.text(target), mode="eval").body
    return target, ast.BinOp(read, node.op, node.value)


def _finds(place: Place, node: ast.stmt) -> bool:
    """``idx = torch.tensor(seen, device=x.device)`` of a list of the host's."""
    call = node.value if isinstance(node, ast.Assign) and isinstance(target_of(node), ast.Name) else None
    if not isinstance(call, ast.Call) or called(call) not in _MAKES or not call.args:
        return False
    return not names_in(call.args[0]) & place.tensors.keys() and not is_number(call.args[0])


def _is_a_list(place: Place, node: ast.AST) -> bool:
    """Whether an index is made of a list here, or is one that an object keeps or a loop goes through."""
    if isinstance(node, ast.Call):
        return called(node) in (*_MAKES, "list", "sorted")
    read = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and place.failure.code == "cpu-index"
    return read or (isinstance(node, ast.expr) and isinstance(place.value(path_of(node)), list))


def _has_lists(held: object) -> bool:
    return not isinstance(held, list) or any(isinstance(each, list) for each in held)


def _is_alike(node: ast.AST) -> bool:
    """Whether an expression computes each element of what lay there alone."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            if called(each) not in (*_ALIKE, "float"):
                return False
        elif not isinstance(each, (*_COMPUTED, ast.Name, ast.Attribute, ast.keyword)):
            return False
    return True


def _gone_through(place: Place, loop: ast.For, name: str) -> str:
    """``logits`` of ``for row, seen in zip(logits, lists)`` for ``row``, or ""."""
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    names = [n.id if isinstance(n, ast.Name) else "" for n in targets]
    zipped = isinstance(loop.iter, ast.Call) and called(loop.iter) == "zip" and len(loop.iter.args) == len(names)
    return path_of(loop.iter.args[names.index(name)]) if zipped and name in names else ""  # type: ignore[attr-defined]


def _is_in_rows(loop: ast.For, target: ast.Subscript) -> bool:
    """Whether each round picks in a row of its own: ``x[i, seen]`` of ``for i, seen in enumerate(lists)``."""
    counts = called(loop.iter) if isinstance(loop.iter, ast.Call) else ""
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and counts == "enumerate" else loop.target
    parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else []
    rows = [n for n in parts if isinstance(n, ast.Name) and isinstance(first, ast.Name) and n.id == first.id]
    return counts in ("range", "enumerate") and bool(rows)


def _text(place: Place, node: ast.expr) -> str:
    return ast.unparse(node) if not hasattr(node, "lineno") else place.text(node)


MARKED = (drawn_as_a_mask, marked_places, left_whole)
