"""Names that a branch makes stand for a tensor that others have, and that is written in place later."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import locals_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.writes import written_in_place

_VIEWS = frozenset("view reshape t transpose squeeze unsqueeze flatten detach expand permute contiguous to".split())  # noqa: SIM905


def is_written_through(place: Place, node: ast.If) -> bool:
    """Whether what a branch gives a name may be another's tensor, which is written by that name behind the branch.

    ``y = x`` in one way and ``y += 1`` after it: a choice of the device's is a tensor of its own.
    """
    function = place.source.function_of(node)
    if function is None:
        return False
    behind = [n for n in ast.walk(function) if getattr(n, "lineno", 0) > (node.end_lineno or node.lineno)]
    written = set(written_in_place(behind))
    if not written:
        return False
    given = [(t.id, n.value) for n in ast.walk(node) if isinstance(n, ast.Assign) for t in _names(n.targets)]
    if any(name in written and _is_anothers(place, value, name, behind) for name, value in given):
        return True
    several = [t for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Tuple)]
    if any(isinstance(part, ast.Name) and part.id in written for each in several for part in each.elts):
        return True
    before = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and n.lineno < node.lineno]
    for name in {name for name, _ in given} & written:  # which stays what it was where no way gives it another
        last = [n.value for n in before if any(t.id == name for t in _names(n.targets))][-1:]
        if (not last and name in arguments_of(function)) or any(_is_anothers(place, n, name, behind) for n in last):
            return True
    return False


def _names(targets: list[ast.expr]) -> Iterator[ast.Name]:
    return (t for t in targets if isinstance(t, ast.Name))


def _is_anothers(place: Place, value: ast.expr, name: str, behind: list[ast.AST]) -> bool:
    """Whether a value is, or lies in, a tensor that somebody else reads later: an argument's, or another name's."""
    while isinstance(value, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(value, ast.Call):
            if not isinstance(value.func, ast.Attribute) or value.func.attr not in _VIEWS:
                return False
            value = value.func
        value = value.value
    function = place.source.function_of(place.statement)
    if not isinstance(value, ast.Name) or value.id == name or function is None:
        return False
    kept = value.id not in locals_of(function) or value.id in arguments_of(function)
    return kept or any(isinstance(n, ast.Name) and n.id == value.id for n in behind)
