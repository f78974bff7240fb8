"""Parts of tensors whose place the host draws or counts: a range of fixed width at a place that a tensor says."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paramgraph_kit.rewrite.source.edits import Edit, Source
from paramgraph_kit.rewrite.source.place import integer, is_number, target_of

if TYPE_CHECKING:
    from paramgraph_kit.rewrite.around.watched import Values

Item = tuple[ast.stmt, ast.expr, "Values"]


def slice_of(source: Source, node: ast.expr) -> ast.Slice | None:
    """The slice that an expression is an end of."""
    above = source.parents.get(node)
    return above if isinstance(above, ast.Slice) else None


def fitting(source: Source, items: Sequence[Item]) -> list[Item]:
    """Those ends of slices that a tensor can say: both move together, or a number is written between them."""
    pairs: dict[ast.Slice, list[Item]] = {}
    for item in items:
        if (whole := slice_of(source, item[1])) is not None:
            pairs.setdefault(whole, []).append(item)
    return [item for whole, pair in pairs.items() if _fits(source, whole, pair) for item in pair]


def _fits(source: Source, whole: ast.Slice, pair: list[Item]) -> bool:
    if len(pair) != 2 or whole.step is not None:
        return False
    (statement, _, low), (_, _, high) = sorted(pair, key=lambda item: item[1] is not whole.lower)
    seen = [*low.seen, *high.seen]
    if not all(type(each) is int and each >= 0 for each in seen) or len(low.seen) != len(high.seen):
        return False
    if not (low.moves or high.moves) or subscript_of(source, whole) is None:
        return False
    part = subscript_of(source, whole)
    return width(low, high) is not None or _is_filled(statement, part) or _is_copied(source, statement, part)


def width(low: Values, high: Values) -> int | None:
    """The size of a part, where it is always the same."""
    found = {b - a for a, b in zip(low.seen, high.seen, strict=True)}
    return found.pop() if len(found) == 1 else None


def is_wide(source: Source, whole: ast.Slice, items: Sequence[Item]) -> bool:
    """Whether a part has always had the same size, and is read."""
    low, high = (next((values for _, node, values in items if node is end), None) for end in (whole.lower, whole.upper))
    part = subscript_of(source, whole)
    read = part is not None and isinstance(part.ctx, ast.Load)
    return read and low is not None and high is not None and width(low, high) is not None


def subscript_of(source: Source, whole: ast.Slice) -> ast.Subscript | None:
    """What a slice is one of."""
    above = source.parents.get(whole)
    above = source.parents.get(above) if isinstance(above, ast.Tuple) else above
    return above if isinstance(above, ast.Subscript) else None


def _is_filled(statement: ast.stmt, part: ast.Subscript | None) -> bool:
    """Whether a statement writes a number into a part of a tensor."""
    return isinstance(statement, ast.Assign) and part in statement.targets and is_number(statement.value)


def _is_copied(source: Source, statement: ast.stmt, part: ast.Subscript | None) -> bool:
    """Whether a statement writes into a part of a tensor what another tensor has there: ``x[:, a:b] = y[i, a:b]``."""
    target = target_of(statement)
    if not isinstance(statement, ast.Assign) or part is None or part not in (target, statement.value):
        return False
    if not isinstance(target, ast.Subscript) or not isinstance(statement.value, ast.Subscript):
        return False
    to, given = (n.elts if isinstance(n, ast.Tuple) else [n] for n in (target.slice, statement.value.slice))
    if len(to) != len(given) or not all(isinstance(each, ast.Slice) and each.step is None for each in to):
        return False
    pairs = zip(map(source.text, to), map(source.text, given), strict=True)
    return all(one == other or (one == ":" and ":" not in other) for one, other in pairs)


def is_given(source: Source, statement: ast.stmt, part: ast.Subscript) -> bool:
    """Whether a part is what such a statement gives: it is written anew with what is written into."""
    return isinstance(statement, ast.Assign) and part is statement.value and _is_copied(source, statement, part)


def edit(
    source: Source, statement: ast.stmt, part: ast.Subscript, ends: dict[ast.Slice, tuple[str, str, int | None]]
) -> Edit | None:
    """A part of a tensor at a place that tensors say: for each slice its ends, or its first and how wide it is."""
    parts = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
    x = source.bracketed(part.value)
    if any(not isinstance(each, ast.Slice) and not _is_all(each) and integer(each) is None for each in parts):
        return None
    if _is_filled(statement, part) and isinstance(statement, ast.Assign):
        return _filled(source, statement, part, ends, x)
    if part in getattr(statement, "targets", ()) and _is_copied(source, statement, part):
        return _filled(source, statement, part, ends, x) if isinstance(statement, ast.Assign) else None
    if not isinstance(part.ctx, ast.Load) or any(wide is None for _, _, wide in ends.values()):
        return None
    rest = [":" if each in ends else source.text(each) for each in parts]
    text = x if all(each in (":", "...") for each in rest) else f"{x}[{', '.join(rest)}]"
    for each, (low, _, wide) in ends.items():
        at = f"{low} + torch.arange({_wide(source, each, wide)}, device={x}.device)"
        text += f".index_select({_dim(parts, each)}, {at})"
    return source.replace(part, text)


def _wide(source: Source, whole: ast.Slice, wide: int | None) -> str:
    """``size`` for ``a : a + size``, where that is a constant."""
    high, low = whole.upper, whole.lower
    if isinstance(high, ast.BinOp) and isinstance(high.op, ast.Add) and low is not None:
        for one, other in ((high.left, high.right), (high.right, high.left)):
            if ast.dump(one) == ast.dump(low) and (
                is_number(other) or (isinstance(other, ast.Name) and other.id.isupper())
            ):
                return source.text(other)
    return str(wide)


def _dim(parts: Sequence[ast.expr], each: ast.expr) -> int:
    """The dimension that a slice is of, from behind where an ellipsis stands before it."""
    before, behind = parts[: parts.index(each)], parts[parts.index(each) + 1 :]
    if any(map(_is_all, before)):
        return -1 - sum(isinstance(one, ast.Slice) for one in behind)
    return sum(isinstance(one, ast.Slice) for one in before)


def _filled(
    source: Source,
    statement: ast.Assign,
    part: ast.Subscript,
    ends: dict[ast.Slice, tuple[str, str, int | None]],
    x: str,
) -> Edit | None:
    """``x[:, a:b] = 0`` as a mask of what lies between tensors ``a`` and ``b``."""
    parts = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
    rest = [":" if each in ends else source.text(each) for each in parts]
    while rest and rest[-1] == ":":
        rest.pop()
    picked = x if all(each in (":", "...") for each in rest) else f"{x}[{', '.join(rest)}]"
    lines, masks = list[str](), list[str]()
    for number, (each, (low, high, _)) in enumerate(ends.items()):
        at, dim = "at" if number == 0 else f"at_{number + 1}", _dim(parts, each)
        more = f"*[1] * ({picked}.dim() - {dim + 1})" if dim >= 0 else ", ".join(["1"] * (-1 - dim))
        shape = f".view(-1, {more})" if more else ""
        lines.append(f"{at} = torch.arange({picked}.shape[{dim}], device={x}.device){shape}")
        masks.append(f"({at} >= {low}) & ({at} < {high})")
    if isinstance(statement.value, ast.Subscript):
        given = [source.text(each) for each in statement.value.slice.elts] if len(parts) > 1 else []  # type: ignore[attr-defined]
        rest = [":" if each in ends else text for each, text in zip(parts, given, strict=False)]
        while rest and rest[-1] == ":":
            rest.pop()
        value = source.bracketed(statement.value.value) + (f"[{', '.join(rest)}]" if rest else "")
        lines.append(f"{picked}.copy_(torch.where({' & '.join(masks)}, {value}, {picked}))")
    else:
        lines.append(f"{picked}.masked_fill_({' & '.join(masks)}, {source.text(statement.value)})")
    return source.replace(statement, f"\n{source.indent(statement)}".join(lines))


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
