"""Numbers that are asked for what they themselves are, which a tensor of the same value is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import heads, path_of
from paramgraph_kit.rewrite.source.place import Place, called

_KINDS = ("isinstance", "type", "id", "hash")
_BY_KEY = ("get", "setdefault", "pop", "add", "discard", "remove", "fromkeys")
_OF_KEYS = ("dict", "set", "frozenset", "defaultdict", "Counter", "OrderedDict")


def asks_for_itself(place: Place) -> bool:
    """``ok is True``, ``isinstance(n, int)`` and ``table[n]`` of what a statement reads, or gives a name.

    A tensor is a key of a dictionary by which tensor it is, not by its value.
    """
    node, function = place.statement, place.source.function_of(place.statement)
    read = (n for n in heads(node) if isinstance(n, ast.Call) and read_of(place, n) is not None)
    if any(_is_key(place, n) for n in read):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else []
    stored = (n for target in targets for n in ast.walk(target) if isinstance(getattr(n, "ctx", None), ast.Store))
    names = {path for n in stored if isinstance(n, (ast.Name, ast.Attribute)) and (path := path_of(n))}
    if not names or function is None:
        return False
    return any(_asks(n, names) or (path_of(n) in names and _is_key(place, n)) for n in _expressions(function))


def _expressions(function: ast.AST) -> Iterator[ast.expr]:
    return (n for n in ast.walk(function) if isinstance(n, ast.expr))


def _asks(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return path_of(node.func) in _KINDS and bool(node.args) and path_of(node.args[0]) in names
    if not isinstance(node, ast.Compare) or not any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
        return False
    sides = (node.left, *node.comparators)
    none = any(isinstance(each, ast.Constant) and each.value is None for each in sides)
    return not none and any(path_of(each) in names for each in sides)


def _is_key(place: Place, node: ast.expr) -> bool:
    """Whether something looks up, or keeps, a value by its hash: ``table[n]``, ``table.get(n)``, ``n in seen``."""
    above = place.source.parents.get(node)
    while isinstance(above, ast.Tuple):
        node, above = above, place.source.parents.get(above)
    if isinstance(above, ast.Call):
        method = isinstance(above.func, ast.Attribute) and called(above) in _BY_KEY
        return method and above.args[:1] == [node] and not _is_path(place, above.func.value, list)  # type: ignore[attr-defined]
    if isinstance(above, ast.Subscript):
        return above.slice is node and _is_path(place, above.value, Mapping)
    if isinstance(above, ast.Compare):
        held = above.comparators[-1]
        there = isinstance(above.ops[-1], (ast.In, ast.NotIn)) and above.left is node
        return there and (_is_path(place, held, Mapping) or _is_path(place, held, AbstractSet))
    if isinstance(above, ast.Dict):
        return node in above.keys
    return isinstance(above, (ast.Set, ast.SetComp)) or (isinstance(above, ast.DictComp) and above.key is node)


def _is_path(place: Place, node: ast.expr, kind: Any) -> bool:
    """Whether an expression is a table of a kind, as far as its text and what its name holds tell."""
    path = path_of(node)
    function = place.source.function_of(place.statement)
    if not path:
        return _makes(node, kind)
    if "." in path:
        return isinstance(place.attributes.get(path.rpartition(".")[2]), kind)
    if not place.is_local(path):
        return isinstance(place.space.get(path), kind)
    made = (n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.AnnAssign))) if function is not None else ()
    return any(
        n.value is not None and _makes(n.value, kind)
        for n in made
        for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
        if path_of(target) == path
    )


def _makes(node: ast.expr, kind: Any) -> bool:
    shown: tuple[type[ast.expr], ...] = (ast.Dict, ast.DictComp) if kind is Mapping else (ast.Set, ast.SetComp)
    if kind is list:
        return isinstance(node, (ast.List, ast.ListComp))
    names = _OF_KEYS if kind is Mapping else ("set", "frozenset")
    return isinstance(node, shown) or (isinstance(node, ast.Call) and called(node) in names)
