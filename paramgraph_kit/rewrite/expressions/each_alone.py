"""What is written in another way first, as other rules know it: several values in one statement, a pick by a call."""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, target_of


def in_its_own_line(place: Place) -> list[Edit]:
    """``a, b = x[m], x[~m]`` becomes ``a = x[m]`` and ``b = x[~m]``, where no value reads what was given before it."""
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return []
    names = [each.id for each in target.elts if isinstance(each, ast.Name)]
    values = node.value.elts
    if len(names) != len(target.elts) or len(values) != len(names) or any(isinstance(v, ast.Starred) for v in values):
        return []
    if any(set(names[:at]) & names_in(value) for at, value in enumerate(values)):
        return []  # `a, b = b, a`
    picks = [place.text(each.slice) for each in values if isinstance(each, ast.Subscript)]
    if len(picks) == len(values) and len(set(picks)) == 1:
        return []  # one mask picks of several, which others know
    lines = [f"{name} = {place.text(value)}" for name, value in zip(names, values, strict=True)]
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def masked_select_as_index(place: Place) -> list[Edit]:
    """``torch.masked_select(x, mask)`` becomes ``x[mask]``, where both are as large in all directions."""
    sizes = re.match(r"masked_select of \w+\[([\d, ]*)\], bool\[([\d, ]*)\]", place.failure.message)
    calls = list(place.calls("masked_select"))
    if sizes is None or sizes[1] != sizes[2] or len(calls) != 1 or calls[0].keywords:
        return []
    of_torch = isinstance(calls[0].func, ast.Attribute) and path_of(calls[0].func.value) == "torch"
    given = list(calls[0].args) if of_torch else [calls[0].func.value, *calls[0].args]  # type: ignore[attr-defined]
    if len(given) != 2:
        return []
    text = f"{place.source.bracketed(given[0])}[{place.text(given[1])}]"
    return [place.source.replace(calls[0], text)]
