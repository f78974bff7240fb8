"""Functions that make an object of a class, and return it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from paramgraph_kit.doctor.explain.syntax import here
from paramgraph_kit.doctor.observe.loop_state import Function


def makers_of(kinds: Collection[str], functions: Iterable[Function]) -> set[str]:
    """Names of those that return an object of one of these classes and nothing else, also by each other."""
    functions, found = list(functions), set[str]()
    while more := {f.name for f in functions if _returns(f, {*kinds, *found})} - found:
        found |= more
    return found


def _returns(function: Function, makes: set[str]) -> bool:
    nodes = [n for statement in function.body for n in here(statement)]
    assigns = [n for n in nodes if isinstance(n, ast.Assign)]

    def is_made(value: ast.expr | None) -> bool:
        if isinstance(value, ast.Name):
            given = [n.value for n in assigns for t in n.targets if isinstance(t, ast.Name) and t.id == value.id]
            return bool(given) and all(isinstance(each, ast.Call) and is_made(each) for each in given)
        return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in makes

    returns = [n for n in nodes if isinstance(n, ast.Return)]
    return bool(returns) and all(is_made(n.value) for n in returns)
