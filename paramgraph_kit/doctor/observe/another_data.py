"""Lines that give ``.data`` to some tensor: of what else a graph reads they say nothing."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeVar

from paramgraph_kit.doctor.observe.captured_values import Moved

_Line = TypeVar("_Line", bound=Any)


def without_data_of_others(lines: Sequence[_Line], moved: Moved) -> list[_Line]:
    """The same without ``p.data = ...`` where that gives no number, or where other lines give the very path.

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
    named = any(each.target is not None and ast.unparse(each.target) == path for each in lines)
    return others if named and not moved.part else [*lines]


def _is_data(target: ast.expr | None) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "data"
