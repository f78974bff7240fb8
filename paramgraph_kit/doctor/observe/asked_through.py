"""Branches that ask for a number through a property or a function: ``if self.should_step:``, ``if self.due(5):``."""

from __future__ import annotations

import ast
from collections.abc import Callable

from paramgraph_kit.doctor.explain.syntax import every, last_name, tree_of

DEEP = 3  # properties that ask each other


def asks_through(asked: ast.AST, file: str, reads: Callable[[ast.AST], bool], depth: int = DEEP) -> bool:
    """Whether a test reads, in what its file defines once by a name that it asks for, what ``reads`` knows."""
    called = {node.func for node in ast.walk(asked) if isinstance(node, ast.Call)}
    for node in ast.walk(asked):
        if not isinstance(node, (ast.Name, ast.Attribute)) or isinstance(node.ctx, ast.Store):
            continue
        given = _given_by(last_name(node), file, is_call=node in called)
        if given is None or (isinstance(node, ast.Name) and node not in called):
            continue
        if any(map(reads, ast.walk(given))) or (depth > 1 and asks_through(given, file, reads, depth - 1)):
            return True
    return False


def _given_by(name: str, file: str, *, is_call: bool) -> ast.expr | None:
    """What a function or a property of that name gives, where it does nothing else and has that name alone."""
    tree = tree_of(file)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = [n for n in every(tree) if isinstance(n, functions) and n.name == name] if tree is not None else []
    if len(named) != 1 or isinstance(named[0], ast.AsyncFunctionDef):
        return None
    decorators = [last_name(each) for each in named[0].decorator_list]
    is_property = decorators == ["property"]
    if is_property == is_call or not (is_property or set(decorators) <= {"staticmethod", "classmethod"}):
        return None
    first = named[0].body[0]
    has_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    body = named[0].body[1:] if has_text else named[0].body
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
