"""Masks of rows that were made as wide as what they pick from: ``x[m.unsqueeze(-1).expand_as(x)].view(-1, k)``.

That picks what ``x[m]`` picks; of rows alone other rules know what to do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.expressions.picks.shapes import ASKS_EACH, form_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, names_in, within
from paramgraph_kit.rewrite.source.place import Place, called, integer

_LAST = ("expand_as", "expand")


def pick_rows(place: Place) -> list[Edit]:
    """``loc[pos_idx].view(-1, 4)`` becomes ``loc[pos]``, where ``pos_idx = pos.unsqueeze(2).expand_as(loc)``."""
    found: list[Edit] = []
    function = place.source.function_of(place.statement)
    if function is None or place.statement not in function.body:
        return []
    for call in place.calls("view", "reshape"):
        part = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(part, ast.Subscript) or len(call.args) != 2 or integer(call.args[0]) != -1:
            continue
        rows = _rows(place, function, part.slice)
        if rows is None or not _is_width(place, part.value, call.args[1]):
            continue
        found.append(place.source.replace(call, f"{place.source.bracketed(part.value)}[{rows}]"))
    return found


def _rows(place: Place, function: Function, mask: ast.expr) -> str | None:
    """A mask as it was before it was made wide; None where it never was."""
    if isinstance(mask, ast.Name):
        before = [n for n in function.body if isinstance(n, ast.Assign) and n.lineno < place.statement.lineno]
        made = [pair for n in before for pair in _given(n, mask.id)]
        others = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id == mask.id]
        stores = [n for n in others if not isinstance(n.ctx, ast.Load) and n.lineno < place.statement.lineno]
        if not made or len(made) != len(stores):
            return None
        narrow = _narrow(place, made[-1][1])
        if narrow is None or _is_changed(place, function, names_in(narrow), made[-1][0].lineno):
            return None
        return place.text(narrow)
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, (ast.Add, ast.BitOr, ast.BitAnd, ast.Mult)):
        sign = {ast.Add: "+", ast.BitOr: "|", ast.BitAnd: "&", ast.Mult: "*"}[type(mask.op)]
        one, other = _rows(place, function, mask.left), _rows(place, function, mask.right)
        return f"{_bracketed(one)} {sign} {_bracketed(other)}" if one is not None and other is not None else None
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        inner = _rows(place, function, mask.operand)
        return f"~{_bracketed(inner)}" if inner is not None else None
    if isinstance(mask, ast.Call) and called(mask) in ASKS_EACH and isinstance(mask.func, ast.Attribute):
        inner = _rows(place, function, mask.func.value)
        given = ", ".join(map(place.text, mask.args))
        plain = all(isinstance(each, ast.Constant) for each in mask.args) and not mask.keywords
        return f"{_bracketed(inner)}.{called(mask)}({given})" if inner is not None and plain else None
    return None


def _given(node: ast.Assign, name: str) -> Iterator[tuple[ast.Assign, ast.expr]]:
    """What a statement gives a name, also as one of several."""
    for target in node.targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        yield from ((node, value) for each, value in pairs if isinstance(each, ast.Name) and each.id == name)


def _narrow(place: Place, made: ast.expr) -> ast.expr | None:
    """``m`` of ``m.unsqueeze(-1).expand_as(x)`` and ``m[..., None].expand(-1, -1, 4)``, of one dimension less."""
    if not isinstance(made, ast.Call) or called(made) not in _LAST or not isinstance(made.func, ast.Attribute):
        return None
    inner, narrow, last = made.func.value, None, False
    if isinstance(inner, ast.Call) and called(inner) == "unsqueeze" and isinstance(inner.func, ast.Attribute):
        narrow = inner.func.value
        form = form_of(place, narrow)
        given = inner.args[0] if len(inner.args) == 1 else None
        text = place.text(given) if given is not None else ""
        last = text in ("-1", f"{place.text(narrow)}.dim()", f"{place.text(narrow)}.ndim")
        last = last or (form is not None and given is not None and integer(given) == len(form.shape))
    elif isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Tuple):
        narrow, parts = inner.value, inner.slice.elts
        none = isinstance(parts[-1], ast.Constant) and parts[-1].value is None
        last = none and all(isinstance(p, ast.Slice) or getattr(p, "value", 0) is ... for p in parts[:-1])
    return narrow if last and isinstance(narrow, ast.Name) else None


def _is_changed(place: Place, function: Function, names: set[str], line: int) -> bool:
    """Whether names get other values, or are written, between a line and the place."""
    for node in (n for part in function.body for n in within(part)):
        if not line < getattr(node, "lineno", 0) < place.statement.lineno:
            continue
        if isinstance(node, ast.Name) and node.id in names and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and names_in(node.value) & names:
            return True
        if isinstance(node, ast.Call) and called(node).endswith("_") and names_in(node.func) & names:
            return True
    return False


def _is_width(place: Place, node: ast.expr, width: ast.expr) -> bool:
    """Whether a number is the size of the last dimension of a tensor, as far as it was seen."""
    form = form_of(place, node) if isinstance(node, ast.Name) else None
    number = integer(width)
    known = place.text(width) in (f"{place.text(node)}.size(-1)", f"{place.text(node)}.shape[-1]")
    if form is None or number is None:
        return known or (form is not None and isinstance(width, ast.Name))  # what is wrong the trial shows
    return bool(form.shape) and form.shape[-1] == number


def _bracketed(text: str) -> str:
    return text if text.isidentifier() else f"({text})"
