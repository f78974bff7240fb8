"""What a loop's variable stands for: each entry of the list that it goes through, ``for layer in self.layers``."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.captured_entries import is_dict
from paramgraph_kit.doctor.observe.short_names import first_of

_MOST = 64  # entries of a list
Value = Callable[[ast.expr], Any]


def targets_of(comprehension: ast.AST) -> set[str]:
    """The variables of a comprehension."""
    loops = [n for n in ast.walk(comprehension) if isinstance(n, ast.comprehension)]
    return {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}


def elements_of(code: CodeType, value: Value) -> dict[str, list[ast.expr]]:
    """By variable, the paths that it stands for in some round; ``value`` says what a path means."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes_of(code):
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])  # which have no lines
        for loop in loops:
            for name, paths in _bound(loop.target, loop.iter, value):
                found.setdefault(name, []).extend(paths)
    return found


def spread(node: ast.expr, elements: dict[str, list[ast.expr]]) -> Iterator[ast.expr]:
    """A path that begins at such a variable, once for each entry."""
    for each in elements.get(first_of(node), ()) if not isinstance(node, ast.Name) else ():
        whole = copy.deepcopy(node)
        part: Any = whole
        while not isinstance(part.value, ast.Name):
            part = part.value
        part.value = ast.copy_location(copy.deepcopy(each), node)
        yield whole


def _bound(target: ast.expr, given: ast.expr, value: Value) -> Iterator[tuple[str, list[ast.expr]]]:
    name = last_name(given.func) if isinstance(given, ast.Call) else ""
    pair = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if isinstance(given, ast.Call) and name == "zip" and len(pair) == len(given.args):
        for one, each in zip(pair, given.args, strict=True):
            yield from _bound(one, each, value)
    elif isinstance(given, ast.Call) and name in ("enumerate", "reversed", "list", "tuple", "sorted") and given.args:
        yield from _bound(pair[-1] if name == "enumerate" and pair else target, given.args[0], value)
    elif isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and name in ("values", "items"):
        held = value(given.func.value)
        one = pair[-1] if name == "items" and pair else target
        if is_dict(held) and isinstance(one, ast.Name):
            keys = [key for key in [*held][:_MOST] if type(key) in (str, int)]
            yield one.id, [_at(given.func.value, key) for key in keys]
    elif isinstance(target, ast.Name) and isinstance(given, (ast.Tuple, ast.List)):
        yield target.id, [each for each in given.elts if first_of(each)]
    elif isinstance(target, ast.Name) and first_of(given) and type(held := value(given)) in (list, tuple):
        yield target.id, [_at(given, number) for number in range(min(len(held), _MOST))]


def _at(held: ast.expr, key: Any) -> ast.expr:
    return ast.copy_location(ast.Subscript(held, ast.Constant(key), ast.Load()), held)
