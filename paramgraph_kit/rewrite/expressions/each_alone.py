"""Several values in one statement, ``a, b = x[m], x[~m]``: each in a line of its own, as other rules know it."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, names_in
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
