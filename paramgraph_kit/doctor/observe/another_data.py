"""Lines that give ``.data`` to some tensor: of what else a graph reads they say nothing."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeVar

from paramgraph_kit.doctor.observe.captured_values import Moved

_Line = TypeVar("_Line", bound=Any)


def without_data_of_others(lines: Sequence[_Line], moved: Moved) -> list[_Line]:
    """The same without ``p.data = ...`` where that gives no number, or where other lines give the very path.

    Nor is an ``update()`` told beside such lines, that names no entry.

    >>> from types import SimpleNamespace as Names
    >>> line = lambda text: Names(target=ast.parse(text).body[0].targets[0])
    >>> read = Names(use=Names(text="self.x"), part="", then=("memory", 1))
    >>> [ast.unparse(each.target) for each in without_data_of_others([line("p.data = e"), line("self.x = x")], read)]
    ['self.x']
    >>> [ast.unparse(each.target) for each in without_data_of_others([line("p.data = e")], read)]
    ['p.data']
    """
    path = moved.use.text
    others = [each for each in lines if not _is_data(each.target) or ast.unparse(each.target.value) == path]
    if moved.then[0] != "memory":
        return others
    key = getattr(getattr(moved.use, "node", None), "slice", None)
    named = any(each.target is not None and ast.unparse(each.target) == path for each in lines)
    if moved.part or not (named or any(_is_update(each, key, names_it=True) for each in lines)):
        return [*lines]
    return [each for each in others if not _is_update(each, key, names_it=False)]


def _is_update(line: Any, key: ast.expr | None, *, names_it: bool) -> bool:
    """Whether a line gives a dictionary entries by ``update()``, and names this one among them, or names it not."""
    node = getattr(line, "node", None)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "update":
        return False
    displays = [each for each in node.args if isinstance(each, ast.Dict)]
    words = {ast.dump(k) for each in displays for k in each.keys if k is not None}
    words |= {ast.dump(ast.Constant(k.arg)) for k in node.keywords if k.arg}
    return (key is not None and ast.dump(key) in words) == names_it


def _is_data(target: ast.expr | None) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "data"
