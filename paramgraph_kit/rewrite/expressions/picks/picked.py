"""Parts of tensors whose ends, or whose rows, the device decides: rules that keep all of them.

``x[s:e].mean(0)`` is a sum of the rows from ``s`` to ``e`` alone, and ``x[~eye]`` is what lies beside a diagonal.
"""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.expressions.picks.shapes import IN_FULL, Summed, form_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, path_of, within
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, integer
from paramgraph_kit.rewrite.source.widths import may_be_negative, parts_of, takes_all

_NARROW = (torch.float16, torch.bfloat16, torch.float32)  # of what was tried with float32 others have halves


def reduce_the_part(place: Place) -> list[Edit]:
    """``x[s:e].sum(0)`` and ``x[:, :e].mean(1)`` become sums over all of ``x``, with zeros beside that part."""
    found = []
    for call in place.calls("sum", "mean"):
        part = sliced(call)
        if part is None:
            continue
        x, cut, at = place.source.bracketed(part[0].value), *part[1:]
        if may_be_negative(place.source, call, cut):
            continue  # below zero it would count from the end
        ends = ((">=", cut.lower), ("<", cut.upper))
        places = f"torch.arange({x}.shape[{at}], device={x}.device)"
        tests = [f"({places} {sign} {place.source.bracketed(end)})" for sign, end in ends if end is not None]
        test = " & ".join(tests)
        whole = not call.args and not call.keywords
        form = form_of(place, part[0].value)
        narrow = called(call) == "mean" and form is not None and form.dtype in _NARROW
        summing = Summed(IN_FULL, f".type_as({x})") if narrow else Summed()
        along = ", ".join(filter(None, ("" if whole else "-1", summing.of)))
        text = f"torch.where({test}, {x}.movedim({at}, -1), 0).sum({along})"
        if called(call) == "mean":
            count = f"({test}).sum()" if len(tests) > 1 else f"{test}.sum()"
            others = f"{x}[0].numel()" if at == 0 else f"{x}.select({at}, 0).numel()"
            text += f" / ({others} * {count})" if whole else f" / {count}"
            text = summing.quotient(text)
            text = f"({text})" if binds_tighter(place.source, call) else text
        found.append(place.source.replace(call, text))
    return found


def sliced(call: ast.Call) -> tuple[ast.Subscript, ast.Slice, int] | None:
    """``x[:, s:e]``, ``s:e`` and 1 of ``x[:, s:e].sum()`` and ``.mean(1)``: one part alone, along what is reduced."""
    given = [*call.args, *(option.value for option in call.keywords if option.arg == "dim")]
    if len(given) > 1 or len(given) != len(call.args) + len(call.keywords) or not isinstance(call.func, ast.Attribute):
        return None
    part = call.func.value
    if not isinstance(part, ast.Subscript):
        return None
    pieces = parts_of(part)
    cuts = [(piece, at) for at, piece in enumerate(pieces) if not takes_all(piece)]
    if len(cuts) != 1 or not all(isinstance(piece, ast.Slice) for piece in pieces):
        return None
    cut, at = cuts[0]
    if not isinstance(cut, ast.Slice) or cut.step is not None or any(integer(each) != at for each in given):
        return None
    ends = [end for end in (cut.lower, cut.upper) if end is not None]
    return None if all(integer(end) is not None for end in ends) else (part, cut, at)


def take_by_rank(place: Place) -> list[Edit]:
    """``x.topk(k)`` with a ``k`` of the device picks of all of ``x``, sorted: ``x.sort(...).values[arange < k]``."""
    for call in place.calls("topk"):
        of_torch = path_of(call.func) == "torch.topk"
        method = call.func.value if isinstance(call.func, ast.Attribute) else None
        x = call.args[0] if of_torch and call.args else method
        options = {str(option.arg): option.value for option in call.keywords}
        given = [*call.args[of_torch:], *([options.pop("k")] if "k" in options else [])]
        largest, ordered = options.pop("largest", None), options.pop("sorted", None)
        if any(each is not None and not isinstance(each, ast.Constant) for each in (largest, ordered)):
            continue
        along = [*given[1:], *([options.pop("dim")] if "dim" in options else [])]
        form = form_of(place, x) if x is not None and _is_named(x) else None
        if x is None or not given or options or integer(given[0]) is not None or len(along) > 1:
            continue
        if form is None or len(form.shape) != 1 or any(integer(each) not in (0, -1) for each in along):
            continue
        above, node = place.source.parents.get(call), place.statement
        name = place.source.bracketed(x)
        at = f"torch.arange({name}.shape[0], device={name}.device) < {place.source.bracketed(given[0])}"
        falls = not isinstance(largest, ast.Constant) or bool(largest.value)
        text = f"{name}.sort({'descending=True' if falls else ''}).values[{at}]"
        first = isinstance(above, ast.Subscript) and integer(above.slice) == 0
        if first or (isinstance(above, ast.Attribute) and above.attr == "values"):
            return [place.source.replace(above, text)] if isinstance(above, ast.expr) else []
        target = node.targets[0] if isinstance(node, ast.Assign) and node.value is call else None
        if isinstance(target, ast.Tuple) and len(target.elts) == 2 and not _is_read(place, target.elts[1]):
            return [place.source.replace(node, f"{place.text(target.elts[0])} = {text}")]
    return []


def _is_named(node: ast.expr) -> bool:
    """``losses``, ``self.losses``, and one row ``losses[b]``: what may be written twice."""
    if isinstance(node, ast.Subscript):
        return _is_named(node.value) and isinstance(node.slice, (ast.Name, ast.Constant))
    return bool(path_of(node))


def _is_read(place: Place, target: ast.expr) -> bool:
    """Whether the function reads a name that a statement gives a value to."""
    function = place.source.function_of(place.statement)
    every = ast.walk(function) if function is not None else ()
    names = (n for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return not isinstance(target, ast.Name) or any(n.id == target.id for n in names)


def beside_the_diagonal(place: Place) -> list[Edit]:
    """``x[~torch.eye(n).bool()]`` is all but a diagonal: views of what is there."""
    function = place.source.function_of(place.statement)
    found = []
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        mask, beside = node.slice, False
        if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
            mask, beside = mask.operand, True
        if not _is_eye(function, mask):
            continue
        x = place.source.bracketed(node.value)
        text = f"{x}.diagonal()"
        if beside:
            text = f"{x}.flatten()[:-1].view(len({x}) - 1, len({x}) + 1)[:, 1:].flatten()"
        found.append(place.source.replace(node, text))
    return found


def _is_eye(function: Function | None, node: ast.expr) -> bool:
    """Whether an expression is an identity matrix, as far as its names tell."""
    while isinstance(node, ast.Call) and called(node) in ("to", "cuda") and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if isinstance(node, ast.Name) and function is not None:
        every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
        made = [n for n in every if any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)]
        stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == node.id]
        once = len(made) == 1 and sum(isinstance(n.ctx, ast.Store) for n in stores) == 1
        return once and isinstance(made[0].value, ast.Call) and _is_eye(None, made[0].value)
    while (
        isinstance(node, ast.Call) and called(node) in ("bool", "to", "cuda") and isinstance(node.func, ast.Attribute)
    ):
        node = node.func.value
    return isinstance(node, ast.Call) and called(node) == "eye" and len(node.args) == 1


def mask_by_rank(place: Place) -> list[Edit]:
    """``x[order[gone]] = v`` with the order of a sort becomes ``x.masked_fill_(mask, v)``, a mask in the order of x.

    Also where the places have a name first: ``at = order[gone]``, ``x[at] = v``.
    """
    node, function = place.statement, place.source.function_of(place.statement)
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or function is None:
        return []
    target = node.targets[0]
    if isinstance(target, ast.Subscript):
        index = _last_index(target)
        mask = _by_rank(place, function, index)
        row = _row_of(place, target)
        gone = form_of(place, index.slice) if isinstance(index, ast.Subscript) else None
        if mask and gone is not None and gone.shape[:1] == (1,) and len(gone.shape) > 1 and _picks_one(target):
            mask += "[0]"  # of the only row
        return [place.source.replace(node, f"{row}.masked_fill_({mask}, {place.text(node.value)})")] if mask else []
    mask = _by_rank(place, function, node.value) if isinstance(target, ast.Name) else ""
    if not mask or not isinstance(target, ast.Name):
        return []
    every = [n for part in function.body for n in within(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)]
    edits = [place.source.replace(node.value, mask)]
    for read in reads:
        put = next((n for n in every if isinstance(n, ast.Assign) and read in set(ast.walk(n.targets[0]))), None)
        to = put.targets[0] if put is not None else None
        if put is None or not isinstance(to, ast.Subscript) or _last_index(to) is not read:
            return []
        text = f"{_row_of(place, to)}.masked_fill_({target.id}, {place.text(put.value)})"
        edits.append(place.source.replace(put, text))
    return edits if reads else []


def _last_index(node: ast.Subscript) -> ast.expr:
    return node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice


def _picks_one(node: ast.Subscript) -> bool:
    """``x[0, at]`` of an ``x`` with one row."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    return len(parts) == 2 and integer(parts[0]) in (0, -1)


def _row_of(place: Place, node: ast.Subscript) -> str:
    """``x[b]`` of ``x[b, at]``, and ``x`` of ``x[at]``."""
    x = place.source.bracketed(node.value)
    first = node.slice.elts[:-1] if isinstance(node.slice, ast.Tuple) else []
    return f"{x}[{', '.join(place.text(each) for each in first)}]" if first else x


def _by_rank(place: Place, function: Function, node: ast.expr) -> str:
    """The mask, in the order of what was sorted, of ``order[gone]``, or ""."""
    if not isinstance(node, ast.Subscript) or isinstance(node.slice, (ast.Tuple, ast.Slice, ast.Constant)):
        return ""
    name = path_of(node.value)
    for made in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        target = made.targets[0]
        second = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None
        sorts = isinstance(made.value, ast.Call) and called(made.value) == "sort"
        ranks = isinstance(made.value, ast.Call) and called(made.value) == "argsort"
        if (sorts and second is not None and path_of(second) == name) or (ranks and path_of(target) == name):
            order, gone = place.source.bracketed(node.value), place.text(node.slice)
            return f"torch.zeros_like({gone}).scatter_(-1, {order}, {gone})"
    return ""
