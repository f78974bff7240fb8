"""What two lines of a round have to do with one another beside local names: attributes, entries, and lists that grow.

``if self.calls >= 33: self.a, self.b = self.b, self.a`` ahead of ``y = y + self.a`` cannot wait for it, though no name
tells so; and no trial shows it that ends before the thirty-third call.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.writes import CHANGES

_CHANGES = CHANGES | {"popitem", "reverse", "rotate", "sort"}
_OF_OBJECTS = ("__call__", "forward")


def is_met(source: Source, node: ast.stmt, later: Iterable[ast.stmt]) -> bool:
    """Whether a statement changes what those behind it read, or the other way round, in functions they call as well."""
    one, other = _reached(source, [node]), _reached(source, later)
    return not (_changed(one).isdisjoint(_read(other)) and _changed(other).isdisjoint(_read(one)))


def changes_in_branch(part: Iterable[ast.stmt], value: Callable[[str], object]) -> bool:
    """Whether a branch of a part changes what is the host's: no replay does, and no trial may have come to it.

    Args:
        value: what a path leads to now, ``self.scale``.
    """
    branches = (n for top in part for n in ast.walk(top) if isinstance(n, ast.If))
    for each in (n for node in branches for top in (*node.body, *node.orelse) for n in ast.walk(top)):
        of: ast.expr | None = None
        if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
            of = each
        elif isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load):
            of = each.value
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _CHANGES:
            of = each.func.value
        if of is not None and isinstance(value(path_of(of)), (int, float, str, list, dict, set, deque)):
            return True
    return False


def _reached(source: Source, nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """Some statements, and the functions of the file that their calls come to, as names tell."""
    functions = [n for n in source.parents if isinstance(n, Function)]
    found, waiting = list[ast.AST](), [*nodes]
    while waiting:
        found += waiting
        calls = [n for each in waiting for n in ast.walk(each) if isinstance(n, ast.Call)]
        names = {called(n) for n in calls}
        if any(isinstance(n.func, ast.Attribute) and last_name(n.func.value) != "torch" for n in calls):
            names |= {*_OF_OBJECTS}
        waiting = [each for each in functions if each.name in names and each not in found]
    return found


def _changed(nodes: Iterable[ast.AST]) -> set[str]:
    """Attributes, and names of what has entries, that some lines change."""
    found = set[str]()
    for node in (n for each in nodes for n in ast.walk(each)):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found.add(last_name(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_change(node.func.attr):
            found.add(last_name(node.func.value))
        elif isinstance(node, ast.Call) and called(node) == "setattr" and len(node.args) > 1:
            found |= {n.value for n in node.args[1:2] if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found - {""}


def _is_change(method: str) -> bool:
    return method in _CHANGES or (method.endswith("_") and not method.endswith("__"))


def _read(nodes: Iterable[ast.AST]) -> set[str]:
    every = [n for each in nodes for n in ast.walk(each)]
    methods = {n.func for n in every if isinstance(n, ast.Call)}  # `opt.step()` is not `self.step`, a number
    read = {
        n.attr
        for n in every
        if isinstance(n, ast.Attribute)
        and isinstance(n.ctx, ast.Load)
        and (n not in methods or path_of(n) == f"self.{n.attr}")
    }
    return read | {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
