"""Advice for ragged rows that are packed, and added up by segments: what is of no row has a segment of its own.

``packed = x[mask]``, ``seg = torch.repeat_interleave(torch.arange(B), lengths)``, and ``index_add_(0, seg, packed)``.
"""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.expressions.picks.masks import bracketed
from paramgraph_kit.rewrite.source.edits import Function, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_ROWS = re.compile(r"\[\d+, \d+(?:, \d+)*\], bool\[\d+, \d+\]")
_ADDS = frozenset(("index_add_", "index_add"))


def spare_segment(place: Place) -> str:
    """The rows that are packed, and the segments that they are of."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("dynamic-shape", "hidden-size") or function is None:
        return ""
    order = [part for top in function.body for part in within(top) if isinstance(part, ast.Assign)]
    packed = next((part for part in order if _packs(part)), None)
    segments = next((part for part in order if _counted(part.value) is not None), None)
    if packed is None or segments is None or node not in (packed, segments):
        return ""
    given, pick, of = _counted(segments.value), packed.value, target_of(segments)
    added = _added(function, of.id) if isinstance(of, ast.Name) else None
    if given is None or added is None or not isinstance(pick, ast.Subscript) or not isinstance(of, ast.Name):
        return ""
    zeros = added.func.value if isinstance(added.func, ast.Attribute) else None
    if not isinstance(zeros, ast.Call) or not zeros.args or called(zeros) != "zeros":
        return ""
    if node is packed and not _ROWS.search(place.failure.message):
        return ""
    if node is packed:
        return (
            f"keep all of it, `{place.text(packed.targets[0])} = {place.source.bracketed(pick.value)}.flatten(0, 1)`: "
            f"what is told of line {segments.lineno} leaves out what is of no row"
        )
    mask, count = place.text(pick.slice), place.text(zeros.args[0])
    size = count if count.isidentifier() or count.isdigit() else f"({count})"
    text = place.text(added)
    whole = next((each for each in order if added in ast.walk(each)), None)
    if whole is None:
        return ""
    new = f"{text.replace(f'zeros({count}', f'zeros({size} + 1', 1)}[:{size}]"
    return (
        f"keep rows padded, and give what is of none a segment of its own: `{of.id} = torch.where("
        f"{bracketed(mask)}.flatten(), {place.source.bracketed(given)}.repeat_interleave({bracketed(mask)}.shape[1]), "
        f"{size})`, in line {packed.lineno} `{place.text(packed.targets[0])} = {place.source.bracketed(pick.value)}"
        f".flatten(0, 1)`, and in line {added.lineno} `{place.text(whole).replace(text, new)}`"
    )


def _packs(node: ast.Assign) -> bool:
    """``packed = x[mask]``."""
    value = node.value
    return (
        isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Name) and isinstance(target_of(node), ast.Name)
    )


def _counted(value: ast.expr) -> ast.expr | None:
    """``torch.arange(B)`` of ``torch.repeat_interleave(torch.arange(B), lengths)``."""
    if not isinstance(value, ast.Call) or called(value) != "repeat_interleave" or value.keywords:
        return None
    given = [*([value.func.value] if isinstance(value.func, ast.Attribute) else []), *value.args]
    given = given[1:] if len(given) == 3 else given
    return given[0] if len(given) == 2 and isinstance(given[0], ast.Call) and called(given[0]) == "arange" else None


def _added(function: Function, name: str) -> ast.Call | None:
    """``torch.zeros(B, 8).index_add_(0, seg, packed)``."""
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and called(n) in _ADDS and len(n.args) == 3]
    found = [n for n in calls if isinstance(n.args[1], ast.Name) and n.args[1].id == name]
    every = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return found[0] if len(found) == len(every) == 1 else None
