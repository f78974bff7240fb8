"""Buffers that a step exchanges: copies one after the other would overwrite what the next one reads."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

_SAME = frozenset(
    ("contiguous", "data", "detach", "expand", "flatten", "reshape", "squeeze", "to", "unsqueeze", "view")
)


def swapped(paths: Sequence[str], nodes: Iterable[ast.AST]) -> set[str]:
    """Those of some paths that may be given another one's memory, perhaps by a local name.

    Names that still lead to the buffers, and what is returned, would read what the copies have written, too: a step
    that exchanges such works on copies of them.
    """
    linked: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for left, right in _pairs(target, node.value):
                    both = linked.get(left, {left}) | linked.get(right, {right})
                    linked.update(dict.fromkeys(both, both))
    return {path for path in paths if len(linked.get(path, set()) & set(paths)) > 1}


def _pairs(target: ast.expr, value: ast.expr) -> Iterable[tuple[str, str]]:
    """What is written, and what it is given as it is."""
    kinds = (ast.Tuple, ast.List)
    if isinstance(target, kinds) and isinstance(value, kinds) and len(target.elts) == len(value.elts):
        for one, given in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, given)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        yield from ((ast.unparse(target), of) for of in _same_memory(value))


def _same_memory(value: ast.expr) -> Iterable[str]:
    if isinstance(value, ast.IfExp):
        yield from (*_same_memory(value.body), *_same_memory(value.orelse))
    elif isinstance(value, ast.Subscript):
        yield from _same_memory(value.value)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME:
        yield from _same_memory(value.func.value)
    elif isinstance(value, ast.Attribute) and value.attr == "data":
        yield from _same_memory(value.value)
    elif isinstance(value, (ast.Name, ast.Attribute)):
        yield ast.unparse(value)
