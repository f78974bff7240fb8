"""Rows that a list of places picks and puts back: all rows are computed, and those that are not meant add nothing.

``tok, k = torch.where(chosen == e)`` with ``out.index_add_(0, tok, w[tok, k, None] * expert(x[tok]))`` adds, for all
rows, what the expert makes of them, weighed by the sum of ``w`` where ``chosen == e``; without a question whether there
are any. Only where the code shows that each row is computed for itself: a trial need not have seen others beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from paramgraph_kit.rewrite.expressions.picks.masks import bracketed
from paramgraph_kit.rewrite.expressions.picks.shapes import assigned_by_where
from paramgraph_kit.rewrite.source.edits import Edit, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.source.rowwise import is_rowwise


@dataclass(slots=True)
class Picks:
    """The names that a list of places has: of the rows, and of the column of each."""

    mask: str  # where they are, as a mask of rows and columns
    row: str
    column: str
    rows_first: bool


def compute_all_rows(place: Place) -> list[Edit]:
    """Experts that are given the rows which have chosen them."""
    node, source = place.statement, place.source
    found = _found(place)
    block = _block(place)
    if found is None or not block:
        return []
    edits = [source.without(node)]
    chosen = found.mask if found.rows_first else f"{bracketed(found.mask)}.T"
    ended, rows = False, set[str]()  # names of what is computed of rows

    def is_row(each: ast.AST) -> bool:
        if isinstance(each, ast.Name):
            return isinstance(each.ctx, ast.Load) and each.id in rows
        return isinstance(each, ast.Subscript) and found.row in {n.id for n in _names(each.slice)}

    for part in block:
        reads = {n.id for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if counts_only(part, {found.row, found.column}):
            for each in _lengths(part, {found.row, found.column}):
                number = f"{bracketed(found.mask)}.sum()"
                edits.append(source.replace(each, number if _is_put_into(place, part, each) else f"int({number})"))
            continue
        computed = [n for n in ast.walk(part) if isinstance(n, ast.expr) and is_row(n)]
        value = part.value if isinstance(part, (ast.Assign, ast.AugAssign, ast.Expr)) else None
        if _puts(part, found.row) and isinstance(value, ast.Call) and isinstance(part, ast.Expr):
            value = value.args[2]
        if computed and not (value is not None and is_rowwise(place, value, is_row)):
            return []
        if computed and isinstance(part, ast.Assign):
            rows |= {n.id for each in part.targets for n in ast.walk(each) if isinstance(n, ast.Name)}
        if not reads & {found.row, found.column} and not ended:
            if isinstance(part, (ast.For, ast.While, ast.Return)):
                return []
            continue
        if isinstance(part, ast.If) and asks_whether_any(part, found.row):
            edits.append(source.without(part))
            continue
        written = _put_back(place, part, found, chosen)
        if written:
            edits += written
            ended = True
        elif isinstance(part, ast.Assign) and (inner := _whole(place, part.value, found, chosen)) is not None:
            edits += inner
        elif reads & {found.row, found.column}:
            return []
    return edits if ended else []


def _names(node: ast.AST) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)]


def counts_only(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement that computes nothing asks of a list of places only how many there are."""
    if not isinstance(node, (ast.Expr, ast.AugAssign, ast.Assign)):
        return False
    lengths = _lengths(node, names)
    inside = {n for each in lengths for n in ast.walk(each)}
    free = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n not in inside}
    return bool(lengths) and not free & names


def _is_put_into(place: Place, node: ast.stmt, number: ast.expr) -> bool:
    """``load[e] += len(tok)``, of a tensor, which takes a number of the device's as well."""
    target = node.target if isinstance(node, ast.AugAssign) else target_of(node)
    if not isinstance(target, ast.Subscript) or not isinstance(node, (ast.AugAssign, ast.Assign)):
        return False
    path = path_of(target.value)
    held = place.tensors.get(path) if place.is_local(path) else place.space.get(path)
    return node.value is number and (isinstance(held, torch.Tensor) or (place.is_local(path) and held is not None))


def _lengths(node: ast.stmt, names: set[str]) -> list[ast.expr]:
    """``len(tok)`` and its like below a statement."""
    every = (n for n in ast.walk(node) if isinstance(n, (ast.Call, ast.Subscript)))
    return [n for n in every if any(counts(n, name) for name in names)]


def _block(place: Place) -> list[ast.stmt]:
    """What follows a statement in its block."""
    above = place.source.parents.get(place.statement)
    block = getattr(above, "body", [])
    return list(block[block.index(place.statement) + 1 :]) if place.statement in block else []


def _found(place: Place) -> Picks | None:
    """``tok, k = torch.where(mask)`` and ``(mask).nonzero(as_tuple=True)``; the rows are what puts the results back."""
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return None
    names = [each.id for each in target.elts if isinstance(each, ast.Name)]
    call = node.value
    if len(names) != 2 or not isinstance(call, ast.Call) or called(call) not in ("where", "nonzero"):
        return None
    given = call.args[0] if len(call.args) == 1 else None
    if not call.args and isinstance(call.func, ast.Attribute):
        given = call.func.value
    if given is None or (called(call) == "nonzero") != any(o.arg == "as_tuple" for o in call.keywords):
        return None
    puts = [name for part in _block(place) for name in names if _puts(part, name)]
    if len(set(puts)) != 1:
        return None
    row = puts[0]
    first = row == names[0]
    return Picks(place.text(given), row, names[1] if first else names[0], first)


def _puts(part: ast.stmt, name: str) -> bool:
    """Whether a statement adds to the rows of a name."""
    if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add) and isinstance(part.target, ast.Subscript):
        return isinstance(part.target.slice, ast.Name) and part.target.slice.id == name
    call = part.value if isinstance(part, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) != "index_add_" or len(call.args) != 3 or call.keywords:
        return False
    zero, index = call.args[:2]
    return isinstance(zero, ast.Constant) and zero.value == 0 and isinstance(index, ast.Name) and index.id == name


def _put_back(place: Place, part: ast.stmt, found: Picks, chosen: str) -> list[Edit]:
    """``out.index_add_(0, tok, v)`` and ``out[tok] += v`` as ``out += torch.where(has, v, 0)``."""
    if not _puts(part, found.row):
        return []
    if isinstance(part, ast.AugAssign):
        assert isinstance(part.target, ast.Subscript)
        out, value = place.text(part.target.value), part.value
    else:
        assert isinstance(part, ast.Expr)
        assert isinstance(part.value, ast.Call)
        assert isinstance(part.value.func, ast.Attribute)
        out, value = place.text(part.value.func.value), part.value.args[2]
    inner = _whole(place, value, found, chosen)
    if inner is None:
        return []
    whole, at = place.source.replace(part, ""), place.source.replace(value, "")
    has = f"{bracketed(chosen)}.any(-1, keepdim=True)"
    return [
        Edit(whole.line, whole.column, at.line, at.column, f"{out} += torch.where({has}, "),
        *inner,
        Edit(at.end_line, at.end_column, whole.end_line, whole.end_column, ", 0)"),
    ]


def _whole(place: Place, node: ast.expr, found: Picks, chosen: str) -> list[Edit] | None:
    """Edits of an expression that keep all rows; None where it uses the rows' places in another way."""
    edits: list[Edit] = []
    inside: set[ast.AST] = set()
    for part in ast.walk(node):
        if part in inside or not isinstance(part, ast.Subscript):
            continue
        names = [n.id for n in ast.walk(part.slice) if isinstance(n, ast.Name)]
        if not set(names) & {found.row, found.column}:
            continue
        text = place.source.bracketed(part.value)
        if names == [found.row] and isinstance(part.slice, ast.Name):
            new = text
        elif names == [found.row, found.column] and isinstance(part.slice, ast.Tuple):
            more = part.slice.elts[2:]
            if not all(isinstance(each, ast.Constant) and each.value is None for each in more):
                return None
            new = f"({text} * {bracketed(chosen)}).sum(-1)" + "[:, None]" * len(more)
        elif names == [found.row] and isinstance(part.slice, ast.Tuple) and _is_none_first(part.slice):
            new = f"{text}[None]"
        else:
            return None
        edits.append(place.source.replace(part, new))
        inside |= set(ast.walk(part))
    left = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in (found.row, found.column)]
    return edits if all(n in inside for n in left) else None


def _is_none_first(node: ast.Tuple) -> bool:
    first = node.elts[0]
    return len(node.elts) == 2 and isinstance(first, ast.Constant) and first.value is None


def asks_whether_any(node: ast.If, name: str) -> bool:
    """``if tok.numel() == 0: continue`` and ``if len(tok) == 0: continue``."""
    if node.orelse or [type(part) for part in node.body] != [ast.Continue]:
        return False
    return _is_number_of(node.test, name, ast.Eq) or (
        isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not) and counts(node.test.operand, name)
    )


def asks_for_one(test: ast.expr, name: str) -> bool:
    """``if tok.numel() > 0:`` and ``if len(tok):``."""
    return counts(test, name) or _is_number_of(test, name, ast.Gt, ast.NotEq)


def _is_number_of(test: ast.expr, name: str, *operators: type[ast.cmpop]) -> bool:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], operators):
        return False
    end = test.comparators[0]
    return isinstance(end, ast.Constant) and end.value == 0 and counts(test.left, name)


def counts(node: ast.expr, name: str) -> bool:
    """``tok.numel()``, ``len(tok)``, ``tok.shape[0]`` and ``tok.size(0)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return path_of(node.value.value) == name
    if not isinstance(node, ast.Call):
        return False
    if called(node) == "len" and len(node.args) == 1:
        return path_of(node.args[0]) == name
    return (
        isinstance(node.func, ast.Attribute) and called(node) in ("numel", "size") and path_of(node.func.value) == name
    )


def drop_the_guard(place: Place) -> list[Edit]:
    """``if mask.any(): y[mask] = v`` does nothing without its question either, where the mask has nothing."""
    node = place.statement
    if not isinstance(node, ast.If) or node.orelse:
        return []
    masks = {text for text in masks_of(place, node.test) if text}
    lines: list[str] = []
    for part in node.body:
        target = target_of(part)
        target = part.target if isinstance(part, ast.AugAssign) else target
        if isinstance(part, ast.Assign) and target is not None and _leaves_the_rest(place, target, part.value, masks):
            lines.append(place.text(part))
            continue
        if not isinstance(target, ast.Subscript) or place.text(target.slice) not in masks:
            return []
        if not isinstance(part, (ast.Assign, ast.AugAssign)) or not is_pure(place, part.value):
            return []
        if any(place.text(n) in masks for n in within(target.value)):
            return []
        written = assigned_by_where(place, part)
        if not written:
            return []
        lines.append(written)
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))] if masks and lines else []


def _leaves_the_rest(place: Place, target: ast.expr, value: ast.expr, masks: set[str]) -> bool:
    """``x = torch.where(mask[:, None], v, x)`` and ``x = x.masked_fill(mask, v)``."""
    if not isinstance(value, ast.Call) or len(value.args) < 2 or not is_pure(place, value):
        return False
    old: ast.expr = value.args[-1]
    if called(value) == "masked_fill" and isinstance(value.func, ast.Attribute):
        old = value.func.value
    elif path_of(value.func) != "torch.where" or len(value.args) != 3:
        return False
    mask = value.args[0]
    while place.text(mask) not in masks:  # spread over more dimensions
        if isinstance(mask, ast.Subscript):
            mask = mask.value
        elif isinstance(mask, ast.Call) and called(mask) in ("unsqueeze", "view", "reshape", "expand", "expand_as"):
            mask = mask.func.value if isinstance(mask.func, ast.Attribute) else mask.args[0]
        else:
            return False
    return place.text(old) == place.text(target)


def masks_of(place: Place, test: ast.expr) -> Iterator[str]:
    """``mask`` of ``mask.any()``, ``mask.sum() > 0`` and ``torch.any(mask)``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Gt, ast.NotEq)):
        end = test.comparators[0]
        if isinstance(end, ast.Constant) and end.value == 0:
            yield from _asked(place, test.left, ("sum", "count_nonzero"))
    else:
        yield from _asked(place, test, ("any", "sum"))


def _asked(place: Place, node: ast.expr, names: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Call) and called(node) == "item" and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if not isinstance(node, ast.Call) or called(node) not in names or node.keywords:
        return
    if path_of(node.func) in ("torch.any", "torch.sum", "torch.count_nonzero"):
        yield from (place.text(each) for each in node.args[:1])
    elif isinstance(node.func, ast.Attribute) and not node.args:
        inner = place.text(node.func.value)
        yield inner[1:-1] if inner.startswith("(") and inner.endswith(")") else inner
