"""Names that get back what the same lines have put away: ``graph, static, out = cache[key]`` of a graph's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, here, innermost, last_name, pairs_of, tree_of

_READ = (ast.Subscript, ast.Attribute)
_MADE = (ast.Tuple, ast.List, ast.Dict, ast.Call)
_GETS = ("get", "setdefault", "pop")
_DEEP = 4  # variables for variables
_Place = tuple[str, ...]  # a container as it is written, and its keys


def is_given_back(file: str, node: ast.AST, target: str) -> bool:
    """Whether a line gives a name only what the function around it has put under that place by this name.

    A graph is captured with ``static`` and both are kept, ``cache[key] = graph, static``; a later call that finds them
    there, ``graph, static = cache[key]``, exchanges nothing for that graph.
    """
    tree = tree_of(file)
    if tree is None or not isinstance(node, ast.Assign):
        return False
    held = _Holds(innermost(tree, node.lineno, FUNCTIONS[:2]) or tree, node)
    got = {held.place_of(value) for part, value in held.given(node) if ast.unparse(part) == target}
    return bool(got) and all(held.is_kept(place) and held.put.get(place) == {target} for place in got)


class _Holds:
    """What a body puts under which places, by other lines than one that takes it from there."""

    def __init__(self, body: ast.AST, takes: ast.AST) -> None:
        nodes = [n for part in getattr(body, "body", []) for n in here(part) if n is not takes]
        pairs = [pair for n in nodes for pair in self.given(n)]
        self.names: dict[str, list[ast.expr]] = {}
        for target, value in pairs:
            if isinstance(target, ast.Name):
                self.names.setdefault(target.id, []).append(value)
        self.put: dict[_Place, set[str]] = {}
        for target, value in pairs:
            if isinstance(target, (ast.Subscript, ast.Attribute)) or isinstance(value, _MADE):
                self._put((target.id,) if isinstance(target, ast.Name) else self.place_of(target), value, _DEEP)
        for call in (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "update"):
            place = self.place_of(call.func.value) if isinstance(call.func, ast.Attribute) else ()
            for word in call.keywords if place else ():
                self._put((*place, repr(word.arg)), word.value, _DEEP)

    def given(self, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
        """What an assignment gives its targets, also of parts: ``a, b = kept`` gives ``b`` the entry ``kept[1]``."""
        for target, value in pairs_of(node):
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
            for number, part in enumerate(parts):
                yield part, ast.Subscript(value, ast.Constant(number), ast.Load())
            if not parts:
                yield target, value

    def place_of(self, node: ast.expr, deep: int = 0) -> _Place:
        """Where something is kept; () where it is computed."""
        if isinstance(node, ast.Name):
            given = self.names.get(node.id, [])
            is_another = len(given) == 1 and isinstance(given[0], _READ) and deep < _DEEP
            return self.place_of(given[0], deep + 1) if is_another else (node.id,)
        if not isinstance(node, _READ):
            return ()
        place = self.place_of(node.value, deep)
        key = f".{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node.slice)
        return (*place, key) if place else ()

    def is_kept(self, place: _Place) -> bool:
        """Whether it is an entry of a table, or of what the body makes, and no attribute that lines exchange."""
        is_entry = any(not key.startswith(".") for key in place[1:])
        made = any(isinstance(value, _MADE) for value in self.names.get(place[0], [])) if place else False
        return bool(place[1:]) and (is_entry or made) and self.is_its(place[0])

    def is_its(self, name: str) -> bool:
        """Whether a variable has only what is made here, or what is found where that was put."""
        given = self.names.get(name, [])
        made = {name, *(ast.unparse(value) for value in given if isinstance(value, _MADE))}
        read = [value for value in given if not isinstance(value, _MADE) or last_name(value) in _GETS]
        for value in read:
            asked = value.func.value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
            key = value.args[0] if isinstance(value, ast.Call) and value.args else None
            node = ast.Subscript(asked, key, ast.Load()) if asked is not None and key is not None else value
            if not self.put.get(self.place_of(node), {""}) <= made:
                return False
        return True

    def _put(self, place: _Place, value: ast.expr, left: int) -> None:
        self.put.setdefault(place, set()).add(ast.unparse(value))
        given = self.names.get(value.id, []) if isinstance(value, ast.Name) and left else []
        made = [each for each in given if isinstance(each, _MADE) and last_name(each) not in _GETS]
        whole: list[ast.expr] = [*made] or [value]
        for each in whole:
            for key, part in _parts_of(each):
                self._put((*place, key), part, left - 1)


def _parts_of(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What a list, a dictionary or an object that is made with words has, by key."""
    if isinstance(value, (ast.Tuple, ast.List)):
        yield from ((str(number), each) for number, each in enumerate(value.elts))
    elif isinstance(value, ast.Dict):
        yield from ((ast.unparse(key), each) for key, each in zip(value.keys, value.values, strict=True) if key)
    elif isinstance(value, ast.Call):  # of ``dict``, or of a class with these as its fields
        for word in value.keywords:
            yield from ((key, word.value) for key in (repr(word.arg), f".{word.arg}"))
