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


def rounds_of(target: ast.expr, over: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a loop gives a value to, each with what that goes through: ``zip()`` and such are looked into.

    >>> loop = ast.parse("for n, (x, y) in enumerate(zip(xs, ys)): ...").body[0]
    >>> [(ast.unparse(name), ast.unparse(over)) for name, over in rounds_of(loop.target, loop.iter)]
    [('n', '0'), ('x', 'xs'), ('y', 'ys')]
    """
    name, given = (last_name(over.func), over.args) if isinstance(over, ast.Call) else ("", [])
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if name == "zip" and len(parts) == len(given):
        for one, each in zip(parts, given, strict=True):
            yield from rounds_of(one, each)
    elif name == "enumerate" and len(parts) == 2 and given:
        yield parts[0], ast.Constant(0)
        yield from rounds_of(parts[1], given[0])
    elif name in ("reversed", "list", "tuple", "sorted") and given:
        yield from rounds_of(target, given[0])
    else:
        yield target, over


def paths_of_variables(code: CodeType, value: Value) -> dict[str, list[ast.expr]]:
    """By variable, the paths that it stands for in some round; ``value`` says what a path means."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes_of(code):
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])  # which have no lines
        for loop in loops:
            for target, over in rounds_of(loop.target, loop.iter):
                for name, paths in _bound(target, over, value):
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
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and name in ("values", "items"):
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
