"""Rows that are added up at indices, as messages along edges are: those that a mask leaves out add zeros.

``src, dst = src[mask], dst[mask]`` keeps all edges, those left out as edges of node 0, and
``out.index_add_(0, dst, msg)`` adds ``torch.where(mask[:, None], msg, 0)``. ``edge_index[:, mask]`` is a pair of such.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch

from paramgraph_kit.rewrite.expressions.picks.masks import (
    assigns,
    bracketed,
    ends_of,
    is_count,
    is_row_of,
    is_singular,
    mask_of,
    may_be_others,
    parts_of,
    picks,
    reduced,
)
from paramgraph_kit.rewrite.expressions.picks.shapes import form_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, names_in, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer
from paramgraph_kit.rewrite.source.rowwise import is_rowwise
from paramgraph_kit.rewrite.source.widths import columns_of

IsRow = Callable[[ast.AST], bool]
_ADDS = frozenset(("index_add_", "index_add", "scatter_add_", "scatter_add"))
_SPREADS = frozenset(("unsqueeze", "view", "reshape", "expand", "expand_as", "repeat", "long", "to"))
_FILLS = frozenset(("ones", "zeros", "full"))


def leave_edges_out(place: Place) -> list[Edit]:
    """Picks of edges by one mask, from the statement on, where all that comes of them is added up."""
    pick, pair, function = (
        next(picks(place), None),
        _pair(place, place.statement),
        place.source.function_of(place.statement),
    )
    index = pair if pick is None else mask_of(place, pick)
    if index is None or function is None:
        return []
    order = [node for part in function.body for node in within(part) if isinstance(node, ast.stmt)]
    order = order[order.index(place.statement) :]
    cut = next((n for n, node in enumerate(order) if n and assigns(node, names_in(index))), len(order))
    name = place.text(index)
    if not isinstance(index, ast.Name):  # what it asks may be another thing a line later
        name = fresh("kept", place.taken)
    edges = _Edges(place, place.text(index), name)
    form = form_of(place, index)
    if (form is not None and len(form.shape) != 1) or not all(map(edges.take, order[:cut])) or not edges.puts:
        return []
    names = edges.rows | edges.pairs
    own = [n for n in ast.walk(function) if isinstance(n, (Function, ast.Lambda)) and n is not function]
    if any(names_in(n) & names for n in own):
        return []
    if any(names_in(node) & names for node in order[cut:]) or may_be_others(place, order, names):
        return []
    return edges.edits


class _Edges:
    """The edges that one mask picks, while what is done with them is rewritten."""

    def __init__(self, place: Place, mask: str, name: str) -> None:
        self.place, self.mask, self.name = place, mask, name  # how it is written, and what it is called from there on
        self.rows, self.pairs = set[str](), set[str]()  # names of what has a row for each edge, and of both ends
        self.edits = [place.source.before(place.statement, [f"{name} = {mask}"])] if name != mask else []
        self.puts = 0

    def is_row(self, node: ast.AST) -> bool:
        """Whether a node is something with a row for each edge."""
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in self.pairs:
            return integer(node.slice) is not None
        return is_row_of(self.place, node, self.mask, self.rows) and not self._is_asked(node)

    def take(self, node: ast.stmt) -> bool:
        """One statement; whether it may have all edges."""
        if isinstance(node, ast.Assign) and self._is_pair(node):
            return True
        found = [n for n in heads(node) if isinstance(n, ast.Call) and _is_put(n)]
        found = [n for n in found if any(map(self.is_row, ast.walk(n)))]
        inside = {part for each in found for part in ast.walk(each)}
        ends = [n for n in ends_of(self.place, node, self.mask, self.rows) if n not in inside]
        inside |= {part for each in ends for part in ast.walk(each)}
        for each in found:
            new = _put(self.place, each, self.name, self.is_row)
            self.puts += bool(new)
            self.edits += [self.place.source.replace(part, text) for part, text in new if isinstance(part, ast.expr)]
            if not new:
                return False
        for end in ends:
            text = reduced(self.place, end, self.mask, self.rows)
            if not text or self.name != self.mask or not is_rowwise(self.place, end.func, self.is_row):
                return False
            self.edits.append(self.place.source.replace(end, text))
        left = [n for n in heads(node) if n not in inside and self.is_row(n)]
        known = {part for each in left for part in ast.walk(each)} | inside
        if any(isinstance(n, ast.Name) and n.id in self.pairs and n not in known for n in heads(node)):
            return False
        if any(is_count(n, self.rows) and n not in inside for n in heads(node)):
            return False
        singular = self.place.trains and any(is_singular(self.place, n, self.mask, self.rows) for n in heads(node))
        return not singular and (not left or self._computes(node, left, bool(found)))

    def _is_pair(self, node: ast.Assign) -> bool:
        """``edge_index = edge_index[:, mask]``, and ``src, dst = edge_index`` of such."""
        names = [n.id for target in node.targets for n in parts_of(target) if isinstance(n, ast.Name)]
        index = _pair(self.place, node)
        if index is not None and self.place.text(index) == self.mask and isinstance(node.value, ast.Subscript):
            text = f"torch.where({self.name}, {self.place.source.bracketed(node.value.value)}, 0)"
            self.edits.append(self.place.source.replace(node.value, text))
            (self.pairs if len(names) == 1 else self.rows).update(names)
            return True
        if isinstance(node.value, ast.Name) and node.value.id in self.pairs and isinstance(node.targets[0], ast.Tuple):
            self.rows.update(names)
            return len(names) == 2
        return False

    def _computes(self, node: ast.stmt, left: list[ast.AST], puts: bool) -> bool:
        """Whether a statement gives local names what it computes of each edge alone."""
        targets = [n for t in node.targets for n in parts_of(t)] if isinstance(node, ast.Assign) else []
        if puts or not isinstance(node, ast.Assign) or not all(isinstance(n, ast.Name) for n in targets):
            return False
        if not is_rowwise(self.place, node.value, self.is_row) and not _is_fresh(node.value, self.is_row):
            return False
        self.rows.update(n.id for n in targets if isinstance(n, ast.Name))
        inner = [n for n in left if isinstance(n, ast.Subscript) and not self._is_of_pair(n)]
        texts = [_whole(self.place, n, self.name) for n in inner]
        if inner == [node.value] and texts == [self.place.text(node.targets[0])] and self.name == self.mask:
            self.edits.append(self.place.source.without(node))
            return True
        self.edits += [self.place.source.replace(n, text) for n, text in zip(inner, texts, strict=True)]
        self.edits += self._within_reach(node)
        return True

    def _is_asked(self, node: ast.AST) -> bool:
        """``points.device`` is that of all of them, too."""
        above = self.place.source.parents.get(node)
        return isinstance(above, ast.Attribute) and above.attr in ("device", "dtype")

    def _within_reach(self, node: ast.Assign) -> list[Edit]:
        """``cell = y * width + x`` that is an index later: of what is left out it may be none."""
        one = node.targets[0] if len(node.targets) == 1 else None
        form = self.place.tensors.get(one.id) if isinstance(one, ast.Name) else None
        picked = isinstance(node.value, ast.Subscript) and self.is_row(node.value)
        if form is None or form.dtype not in (torch.int64, torch.int32) or len(form.shape) != 1 or picked:
            return []
        at = self.place.source.replace(node.value, "")
        return [
            Edit(at.line, at.column, at.line, at.column, f"torch.where({self.name}, "),
            Edit(at.end_line, at.end_column, at.end_line, at.end_column, ", 0)"),
        ]

    def _is_of_pair(self, node: ast.Subscript) -> bool:
        return isinstance(node.value, ast.Name) and node.value.id in self.pairs


def _is_put(call: ast.Call) -> bool:
    """Whether a call adds rows up at indices of its own."""
    if called(call) == "bincount":
        return any(option.arg == "minlength" for option in call.keywords)
    return called(call) in _ADDS and isinstance(call.func, ast.Attribute) and len(call.args) == 3 and not call.keywords


def _put(place: Place, call: ast.Call, mask: str, is_row: IsRow) -> list[tuple[ast.AST, str]]:
    """What stands for parts of such a call where a mask leaves rows out; nothing where that is not sure."""
    if called(call) == "bincount":
        given = {option.arg: option.value for option in call.keywords}
        weights = given.pop("weights", None)
        if len(call.args) != 1 or set(given) != {"minlength"} or not is_row(call.args[0]):
            return []
        if weights is not None and not (is_row(weights) and isinstance(weights, ast.Name)):
            return []
        index = place.text(call.args[0])
        kind = "torch.long" if weights is None else f"{place.text(weights)}.dtype"
        each = f"{bracketed(mask)}.long()" if weights is None else f"torch.where({mask}, {place.text(weights)}, 0)"
        zeros = f"torch.zeros({place.text(given['minlength'])}, dtype={kind}, device={index}.device)"
        return [(call, f"{zeros}.scatter_add_(0, {index}, {each})")]
    assert isinstance(call.func, ast.Attribute)
    zero, index_of, value = call.args
    if integer(zero) != 0 or any(is_row(n) for n in ast.walk(call.func)) or not _is_index(index_of, is_row):
        return []
    if not any(map(is_row, ast.walk(value))) or not (_is_fresh(value, is_row) or is_rowwise(place, value, is_row)):
        return []
    text, rank = place.text(value), _rank(place, value, is_row, called(call))
    if rank is None:
        return [(value, f"torch.where({mask}, {place.source.bracketed(value)}.movedim(0, -1), 0).movedim(-1, 0)")]
    spread = f"{bracketed(mask)}[:, {', '.join(['None'] * (rank - 1))}]" if rank > 1 else mask
    return [(value, f"torch.where({spread}, {text}, 0)")]


def _is_fresh(node: ast.expr, is_row: IsRow) -> bool:
    """``torch.ones_like(dst)`` and ``torch.ones(dst.numel())``: as many of one value as there are rows."""
    if not isinstance(node, ast.Call) or called(node) not in (*_FILLS, *(f"{name}_like" for name in _FILLS)):
        return False
    first = node.args[0] if node.args else None
    return first is not None and (is_row(first) or _is_number(first, is_row))


def _whole(place: Place, node: ast.Subscript, mask: str) -> str:
    """``src[mask]`` as a row for each edge: those that are left out are edges of the first node."""
    text, form = place.source.bracketed(node.value), form_of(place, node.value)
    index = form is not None and form.dtype in (torch.int64, torch.int32) and len(form.shape) == 1
    return f"torch.where({mask}, {text}, 0)" if index else text


def _pair(place: Place, node: ast.stmt) -> ast.expr | None:
    """The mask of ``edge_index = edge_index[:, mask]``; None for anything else."""
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(node, ast.Assign) or not isinstance(value, ast.Subscript):
        return None
    mask = columns_of(value)
    if mask is None:
        return None
    form, of = form_of(place, mask), form_of(place, value.value)
    two = of is not None and len(of.shape) == 2 and of.shape[0] == 2 and of.dtype in (torch.int64, torch.int32)
    named = isinstance(node.targets[0], (ast.Name, ast.Tuple))
    known = form is not None and form.dtype is torch.bool and len(form.shape) == 1
    return mask if two and named and (known or _compares_ends(place, mask, value.value)) else None


def _compares_ends(place: Place, node: ast.expr, pair: ast.expr) -> bool:
    """``edge_index[0] >= 0`` and ``edge_index[0] != edge_index[1]``: one answer for each edge."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    picked = [n for n in (node.left, *node.comparators) if isinstance(n, ast.Subscript)]
    of_pair = all(place.text(n.value) == place.text(pair) and integer(n.slice) is not None for n in picked)
    others = [n for n in (node.left, *node.comparators) if n not in picked]
    numbers = all(isinstance(n, ast.Constant) or integer(n) is not None for n in others)
    return bool(picked) and of_pair and numbers


def _is_index(node: ast.expr, is_row: IsRow) -> bool:
    """``dst``, ``dst[:, None].expand(-1, 8)``: an index for each row."""
    if is_row(node):
        return True
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        spread = bool(parts) and isinstance(parts[0], ast.Slice) and parts[0].lower is parts[0].upper is None
        nones = all(isinstance(n, ast.Constant) and n.value is None for n in parts[1:])
        return spread and nones and _is_index(node.value, is_row)
    if not isinstance(node, ast.Call) or called(node) not in _SPREADS or not isinstance(node.func, ast.Attribute):
        return False
    first = integer(node.args[0]) if node.args else 0
    keeps = {"unsqueeze": (1, -1), "repeat": (1,), "to": (None,)}.get(called(node), (-1, 0, None))
    return (first in keeps or called(node) == "expand_as") and _is_index(node.func.value, is_row)


def _is_number(node: ast.expr, is_row: IsRow) -> bool:
    """``dst.numel()``, ``dst.shape[0]``, ``dst.size(0)`` and ``len(dst)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        return integer(node.slice) == 0 and is_row(node.value.value)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "len" and len(node.args) == 1 and is_row(node.args[0])
    asks = called(node) == "numel" or (called(node) == "size" and [integer(n) for n in node.args] == [0])
    return (
        asks
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and is_row(node.func.value)
    )


def _rank(place: Place, value: ast.expr, is_row: IsRow, name: str) -> int | None:
    if _is_fresh(value, is_row):
        first = value.args[0] if isinstance(value, ast.Call) else value
        return 1 if isinstance(value, ast.Call) and len(value.args) == 1 and _is_number(first, is_row) else None
    form = form_of(place, value) if isinstance(value, ast.Name) else None
    return len(form.shape) if form is not None else None
