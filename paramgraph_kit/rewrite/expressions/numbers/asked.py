"""Numbers that are asked for what they themselves are, which a tensor of the same value is not."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from paramgraph_kit.driver.files import is_library_code
from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import Function, Source, heads, path_of
from paramgraph_kit.rewrite.source.place import Place, called

_Is = Callable[[ast.expr], bool]
_DEEP = 3  # helpers in helpers
_KINDS = ("isinstance", "type", "id", "hash", "str", "repr")
_BY_KEY = ("get", "setdefault", "pop", "add", "discard", "remove", "fromkeys")
_OF_KEYS = ("dict", "set", "frozenset", "defaultdict", "Counter", "OrderedDict")


def asks_for_itself(place: Place) -> bool:
    """``ok is True``, ``match ok``, ``isinstance(n, int)`` and ``table[n]`` of what a statement reads, or names.

    A tensor is a key of a dictionary by which tensor it is, not by its value. Helpers that are given it ask as well.
    """
    node, function = place.statement, place.source.function_of(place.statement)
    read = {n for n in heads(node) if isinstance(n, ast.Call) and read_of(place, n) is not None}
    targets = node.targets if isinstance(node, ast.Assign) else []
    stored = (n for target in targets for n in ast.walk(target) if isinstance(getattr(n, "ctx", None), ast.Store))
    names = {path for n in stored if isinstance(n, (ast.Name, ast.Attribute)) and (path := path_of(n))}
    every = [n for n in heads(node) if isinstance(n, ast.expr)]
    every += _expressions(function) if names and function is not None else ()
    return _any_asks(place, every, lambda n: n in read or path_of(n) in names)


def _expressions(function: ast.AST) -> Iterator[ast.expr]:
    return (n for n in ast.walk(function) if isinstance(n, ast.expr))


def _any_asks(place: Place, every: Iterable[ast.expr], is_it: _Is, inside: tuple[str, ...] = ()) -> bool:
    """Whether any of some expressions asks; ``inside`` are the helpers that lead there."""
    for node in every:
        if is_it(node) and (_is_key(place, node) or _is_matched(place, node)):
            return True
        if _asks(node, is_it) or (isinstance(node, ast.Call) and _helper_asks(place, node, is_it, inside)):
            return True
    return False


def _asks(node: ast.expr, is_it: _Is) -> bool:
    if isinstance(node, ast.Call):
        return path_of(node.func) in _KINDS and bool(node.args) and is_it(node.args[0])
    if isinstance(node, ast.FormattedValue):
        return node.conversion != -1 and is_it(node.value)  # a tensor's own text: `{n!r}`
    if not isinstance(node, ast.Compare) or not any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
        return False
    sides = (node.left, *node.comparators)
    none = any(isinstance(each, ast.Constant) and each.value is None for each in sides)
    return not none and any(map(is_it, sides))


def _helper_asks(place: Place, call: ast.Call, is_it: _Is, inside: tuple[str, ...]) -> bool:
    """The same of a function of the user's, here or in another module, for the names that it is given it by."""
    given = [n for n, each in enumerate(call.args) if is_it(each)]
    named = [each.arg for each in call.keywords if is_it(each.value)]
    if not given and not named:
        return False
    if hasattr(_called(place, path_of(call.func)), "cache_info"):
        return True  # a cache of functools has it as a key
    function: Function | ast.Lambda
    if isinstance(call.func, ast.Lambda):
        where, function, method = place, call.func, False
    elif called(call) in inside or len(inside) >= _DEEP or (found := _helper(place, call)) is None:
        return False
    else:
        where, function, method = found
    slots = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][int(method) :]
    names = {slots[n] for n in given if n < len(slots)} | {each for each in named if each is not None}
    return _any_asks(where, [*_expressions(function)], lambda n: path_of(n) in names, (*inside, called(call)))


def _helper(place: Place, call: ast.Call) -> tuple[Place, Function, bool] | None:
    """Who is called, the place of its first statement, and whether it has a ``self`` that no argument names."""
    name, path = called(call), path_of(call.func)
    known = inspect.unwrap(found) if callable(found := _called(place, path)) else None
    code = getattr(known, "__code__", None)
    elsewhere = code is not None and code.co_filename != place.source.file
    if code is not None and elsewhere and is_library_code(code, getattr(known, "__globals__", {})):
        return None
    source = Source.of(code.co_filename) if elsewhere and code is not None else place.source
    every = [] if source is None else [n for n in source.parents if isinstance(n, Function) and n.name == name]
    if source is None or len(every) != 1:
        return None
    function, above = every[0], source.parents.get(every[0])
    space = getattr(known, "__globals__", place.space)
    where = replace(place, source=source, statement=function.body[0], space=space)
    static = any(path_of(each) == "staticmethod" for each in function.decorator_list)
    return where, function, isinstance(above, ast.ClassDef) and isinstance(call.func, ast.Attribute) and not static


def _called(place: Place, path: str) -> Any:
    """What a name leads to; ``self.scale`` is looked up in the class, also in those that it is made of."""
    owner, _, name = path.rpartition(".")
    if owner != "self":
        return place.value(path) or (inspect.getattr_static(place.value(owner), name, None) if owner else None)
    above: ast.AST | None = place.statement
    while above is not None and not isinstance(above, ast.ClassDef):
        above = place.source.parents.get(above)
    found = inspect.getattr_static(place.space.get(above.name), name, None) if above is not None else None
    return getattr(found, "__func__", found)


def _is_matched(place: Place, node: ast.expr) -> bool:
    """Whether ``match n:`` asks for it, alone or among others: ``case True`` and ``case int()`` are no tensor's."""
    above = place.source.parents.get(node)
    while isinstance(above, (ast.Tuple, ast.List, ast.Dict)):
        above = place.source.parents.get(above)
    return isinstance(above, ast.Match)


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
