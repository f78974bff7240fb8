"""What a tensor that lives on is before the first step: a number or None, where the object or the file is made.

A step that has run already shows a tensor there; lines that write into it fail in a new process, whose first step finds
``self.mean = 0.0``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of

MAKERS = ("__init__", "__post_init__")


def begins_as(source: Source, function: Function, path: str) -> list[ast.expr]:
    """The numbers, and ``None``, with which an object's attribute or a name of the file begins, as it is written."""
    return [value for target, value in _pairs(source, function, path) if path_of(target) == path and _is_plain(value)]


def is_made_by(source: Source, function: Function, path: str) -> bool:
    """Whether a method makes an attribute for a new object, whose ``__init__`` calls it: nothing is there before."""
    if not path.startswith("self.") or path.count(".") > 1 or function.name in MAKERS:
        return False
    made = [value for target, value in _pairs(source, function, path) if path_of(target) == path]
    kinds = [*_classes_of(source, function)]
    methods = {part.name: part for kind in reversed(kinds) for part in kind.body if isinstance(part, Function)}
    waiting, seen = [name for name in MAKERS if name in methods], set[str]()
    while waiting:
        seen.add(name := waiting.pop())
        calls = (path_of(n.func) for n in ast.walk(methods[name]) if isinstance(n, ast.Call))
        called = {each.removeprefix("self.") for each in calls if each.startswith("self.")}
        waiting += called & {*methods} - seen
    return function.name in seen and all(map(is_none, made))


def not_made(path: str) -> str:
    """How a line asks whether an attribute is not there, or None."""
    owner, _, name = path.rpartition(".")
    return f'getattr({owner}, "{name}", None) is None'


def is_none(value: ast.expr) -> bool:
    """Whether it is ``None``, and no number."""
    return isinstance(value, ast.Constant) and value.value is None


def _pairs(source: Source, function: Function, path: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not path.startswith("self."):
        tops = source.tree.body if "." not in path else []
        yield from (pair for node in tops for pair in pairs_of(node))
        return
    for kind in _classes_of(source, function):
        for part in kind.body:
            if isinstance(part, Function) and part.name in MAKERS and part is not function:
                yield from (pair for node in ast.walk(part) for pair in pairs_of(node))


def _classes_of(source: Source, function: Function) -> Iterator[ast.ClassDef]:
    """The class of a method, and those of the file that it is made of."""
    waiting = [source.parents.get(function)]
    known = {n.name: n for n in source.tree.body if isinstance(n, ast.ClassDef)}
    seen = set[str]()
    while waiting:
        kind = waiting.pop(0)
        if isinstance(kind, ast.ClassDef) and kind.name not in seen:
            seen.add(kind.name)
            yield kind
            waiting += [known.get(path_of(base)) for base in kind.bases]


def _is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, ast.Call):  # float("inf")
        return path_of(value.func) == "float"
    return isinstance(value, ast.Constant) and (value.value is None or type(value.value) in (int, float))
