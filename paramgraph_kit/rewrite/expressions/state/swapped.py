"""Buffers that a step exchanges: copies one after the other would overwrite what the next one reads."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Sequence

_SAME = frozenset(
    ("contiguous", "data", "detach", "expand", "flatten", "reshape", "squeeze", "to", "unsqueeze", "view")
)


def swapped(paths: Sequence[str], nodes: Collection[ast.AST]) -> set[str]:
    """Those of some paths whose memory another one of them, or a name that is returned, may have in the end.

    These would read what the copies have written: a step that exchanges such, or returns the state of before, works on
    copies of them.
    """
    leads = _leads(paths, nodes)
    returned = (n for each in nodes if isinstance(each, ast.Return) for n in ast.walk(each))
    read = {ast.unparse(n) for n in returned if isinstance(n, (ast.Name, ast.Attribute))}
    return {of for name in {*paths, *read} for of in leads.get(name, ()) if of != name}


def is_read_later(path: str, nodes: Collection[ast.AST], store: ast.expr) -> bool:
    """Whether a name that leads to a state's memory is read behind the line that gives the state another value."""
    names = {name for name, of in _leads([path], nodes).items() if path in of and name != path}
    later = (n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and n.lineno > store.lineno)
    return any(isinstance(n.ctx, ast.Load) and ast.unparse(n) in names for n in later)


def _leads(paths: Sequence[str], nodes: Collection[ast.AST]) -> dict[str, set[str]]:
    """To which of some states' memory each name may lead."""
    pairs = [
        pair for n in nodes if isinstance(n, ast.Assign) for target in n.targets for pair in _pairs(target, n.value)
    ]
    leads = {path: {path} for path in paths}
    for _ in range(len(pairs)):
        before = sum(map(len, leads.values()))
        for name, given in pairs:
            leads[name] = leads.get(name, set()) | leads.get(given, set())
        if sum(map(len, leads.values())) == before:
            break
    return leads


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
