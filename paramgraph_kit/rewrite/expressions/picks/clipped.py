"""Rows that a loop goes on without: a mask says which are left, and sums, means and spreads leave the others out.

``x = x[(x - x.mean()).abs() < 2 * x.std()]`` in three rounds becomes ``kept = kept & (...)``, with the mean and the
spread of what is kept: sigma clipping.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import torch

from paramgraph_kit.rewrite.expressions.picks.masks import ends_of, is_count, is_numel, is_row_of, loss_of, reduced
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, fresh, target_of
from paramgraph_kit.rewrite.source.rowwise import is_rowwise


def keep_on_clipping(place: Place) -> list[Edit]:
    """``x = x[m]`` in a loop, where every use of ``x`` from there on is of each row alone, or adds rows up."""
    function, loop = place.source.function_of(place.statement), place.source.parents.get(place.statement)
    if function is None or not isinstance(loop, ast.For) or loop.orelse or place.trains:
        return []
    own = _pick(place.statement)
    if own is None:
        return []
    mask, picked = own[1], {node: pick for node in loop.body if (pick := _pick(node)) is not None}
    picks = [node for node, pick in picked.items() if ast.dump(pick[1]) == ast.dump(mask)]
    names = {picked[node][0] for node in picks}
    if place.statement is not picks[0]:
        return []
    first = loop.body.index(picks[0])
    if loop.body[first : first + len(picks)] != picks:
        return []
    forms = [place.tensors.get(name) for name in names]
    if any(form is None or len(form.shape) != 1 or form.dtype is torch.bool for form in forms):
        return []
    block = getattr(place.source.parents.get(loop), "body", None)
    if not isinstance(block, list) or loop not in block:
        return []
    kept = fresh("kept", place.taken)
    edits = [place.source.before(loop, [f"{kept} = torch.ones_like({sorted(names)[0]}, dtype=torch.bool)"])]
    whole = _Kept(place, kept, set(names))
    if not whole.go_through(loop.body[:first]):
        return []
    if not whole.is_of_rows(mask):
        return []
    text = whole.text_of(picks[0], mask)
    edits.append(place.source.replace(picks[0], f"{kept} = {kept} & ({text})"))
    edits += [place.source.without(node) for node in picks[1:]]
    gone, whole.rows = whole.rows - names, set(names)
    rest = [*loop.body[first + len(picks) :], *block[block.index(loop) + 1 :]]
    if any(gone & {n.id for n in within(node) if isinstance(n, ast.Name)} for node in rest):
        return []
    if not whole.go_through(rest):
        return []
    if any(n.id in whole.rows | gone for n in _read_later(place, function, loop, block)):
        return []  # where all rows are left
    return [*edits, *whole.edits]


def _read_later(place: Place, function: Function, loop: ast.For, block: list[ast.stmt]) -> Iterator[ast.Name]:
    """Names that are read behind the block of a loop, or, where that is in a loop of its own, before it in the next."""
    inside = {n for node in block for n in ast.walk(node)}
    above: ast.AST | None = place.source.parents.get(loop)
    again = set[ast.AST]()
    while above is not None and above is not function:
        again |= {*ast.walk(above)} if isinstance(above, (ast.For, ast.While)) else set()
        above = place.source.parents.get(above)
    made = {
        n.id
        for node in block[: block.index(loop)]
        for t in getattr(node, "targets", ())
        for n in ast.walk(t)
        if isinstance(n, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            behind = node not in inside and (node in again or node.lineno > loop.lineno)
            if behind or (node in again and node.id not in made):
                yield node


def _pick(node: ast.stmt) -> tuple[str, ast.expr] | None:
    """``x`` and ``m`` of ``x = x[m]``."""
    target, value = target_of(node), getattr(node, "value", None)
    if not isinstance(target, ast.Name) or not isinstance(value, ast.Subscript) or path_of(value.value) != target.id:
        return None
    masks = (ast.Name, ast.Compare, ast.UnaryOp, ast.BinOp)
    return (target.id, value.slice) if isinstance(node, ast.Assign) and isinstance(value.slice, masks) else None


class _Kept:
    """Statements in which the rows of some names count only where a mask is true."""

    def __init__(self, place: Place, mask: str, rows: set[str]) -> None:
        self.place, self.mask, self.rows = place, mask, rows
        self.edits: list[Edit] = []

    def _is_row(self, node: ast.AST) -> bool:
        return is_row_of(self.place, node, self.mask, self.rows)

    def is_of_rows(self, mask: ast.expr) -> bool:
        """Whether what decides is found for each row."""
        return any(map(self._is_row, ast.walk(mask)))

    def go_through(self, nodes: Sequence[ast.stmt]) -> bool:
        """Edit statements; False where one does something else with rows."""
        return all(self._edit(part) for node in nodes for part in within(node) if isinstance(part, ast.stmt))

    def text_of(self, statement: ast.stmt, node: ast.expr) -> str:
        """An expression of a statement that is written anew, with what is added up in it."""
        text = self.place.text(node)
        for end in ends_of(self.place, statement, self.mask, self.rows):
            text = text.replace(self.place.text(end), _of_one_dimension(reduced(self.place, end, self.mask, self.rows)))
        return text

    def _edit(self, node: ast.stmt) -> bool:
        place = self.place
        ends = list(ends_of(place, node, self.mask, self.rows))
        counts = [
            n for n in heads(node) if (is_count(n, self.rows) or is_numel(n, self.rows)) and isinstance(n, ast.expr)
        ]
        inside = {part for each in (*ends, *counts) for part in ast.walk(each)}
        left = [n for n in heads(node) if n not in inside and self._is_row(n)]
        for end in ends:
            text = "" if loss_of(place, end) else _of_one_dimension(reduced(place, end, self.mask, self.rows))
            if (
                not text
                or not isinstance(end.func, ast.Attribute)
                or not is_rowwise(place, end.func.value, self._is_row)
            ):
                return False
            self.edits.append(place.source.replace(end, text))
        self.edits += [place.source.replace(n, f"{self.mask}.sum()") for n in counts]
        if not left:
            return not (isinstance(node, ast.Assign) and names_in(node.targets[0]) & self.rows)
        target = target_of(node)
        if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name):
            return False
        if not is_rowwise(place, node.value, lambda n: n not in inside and self._is_row(n)):
            return False
        self.rows.add(target.id)
        return True


def _of_one_dimension(text: str) -> str:
    """A reduction along the rows, without what only more dimensions need."""
    text = text.replace(".movedim(0, -1)", "").replace(".sum(-1, keepdim=True)", ".sum()").replace(".sum(-1)", ".sum()")
    return re.sub(r"\(\w+\[0\]\.numel\(\) \* (\w+\.sum\(\))\)", r"\1", text)
