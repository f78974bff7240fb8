"""Statements that cannot change places, as one reads what another gives a value: also in functions that they call.

``self.log.append(peak * self.width)`` is not done behind ``self.limit()``, where that moves ``self.width``.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.writes import CHANGES, touches

_DEEP = 3  # functions that others call
_OF_PYTHON = (types.MethodType, types.FunctionType)


class Touched(NamedTuple):
    """What a statement reads, and what it gives a value, as ``a.b``."""

    read: frozenset[str]
    given: frozenset[str]


class Crossing:
    """What statements read and give a value of what lives on, but for tensors: their moves show in any trial."""

    def __init__(self, functions: Mapping[str, Function], value: Callable[[str], Any], local: Collection[str]) -> None:
        self.functions, self.value, self.local = functions, value, {*local} - {"self"}

    def crossed(self, order: Iterable[ast.stmt], moved: Collection[ast.stmt]) -> list[tuple[ast.stmt, ast.stmt]]:
        """Each statement that would be done behind a later one, with that one, where one gives what the other reads."""
        before, found = list[tuple[ast.stmt, Touched]](), list[tuple[ast.stmt, ast.stmt]]()
        for node in order:
            here = self.touched(node, {}, self.local)
            if node in moved:
                before.append((node, here))
                continue
            for one, there in before:
                if self._meet(there.read, here.given) or self._meet(there.given, here.read | here.given):
                    found.append((one, node))
        return found

    def touched(self, node: ast.AST, named: Mapping[str, str], local: Collection[str], deep: int = _DEEP) -> Touched:
        """``named``: what the caller calls what a function is given; ``local``: names that are nobody else's."""
        read, given, inner = set[str](), set[str](), set[ast.AST]()
        for part in within(node):
            if isinstance(part, ast.Call):
                paths = self._called(part, named, local, deep)
                read |= paths.read
                given |= paths.given
            elif isinstance(part, ast.Attribute) and deep and (found := self._property(part)) is not None:
                owner = _outside(path_of(part.value), named, local)
                paths = self._within(found, {name: owner for name in arguments_of(found)[:1] if owner}, deep)
                read |= paths.read
                given |= paths.given
            if not isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)) or part in inner:
                continue
            inner |= {*_inside(part)}
            path = _outside(path_of(part), named, local)
            if path and isinstance(part.ctx, ast.Load):
                read.add(path)
            elif path and not (isinstance(part, ast.Name) and part.id in named):  # a parameter is the function's own
                given.add(path)
        return Touched(frozenset(read), frozenset(given))

    def _called(self, call: ast.Call, named: Mapping[str, str], local: Collection[str], deep: int) -> Touched:
        """What a function of these files reads and gives, and any other method: the list that it changes."""
        of = call.func.value if isinstance(call.func, ast.Attribute) else None
        owner = path_of(of) if of is not None else ""
        function, outside = self.functions.get(called(call)) if deep else None, _outside(owner, named, local)
        method = self.value(f"{outside}.{called(call)}") if outside not in ("", "self") else None
        if function is None or (outside not in ("", "self") and not isinstance(method, _OF_PYTHON)):
            changed = outside if called(call) in CHANGES else ""
            return Touched(frozenset(), frozenset({changed} - {""}))
        takes = arguments_of(function)
        handed = [*([of] if of is not None and not isinstance(method, types.FunctionType) else []), *call.args]
        theirs = {name: path_of(each) for name, each in zip(takes, handed, strict=False)}
        theirs |= {each.arg: path_of(each.value) for each in call.keywords if each.arg in takes}
        theirs = {name: _outside(path, named, local) for name, path in theirs.items() if path}
        return self._within(function, theirs, deep)

    def _within(self, function: Function, theirs: Mapping[str, str], deep: int) -> Touched:
        """What a function reads and gives whose arguments the caller calls ``theirs``."""
        own = locals_of(function) - theirs.keys()
        parts = [self.touched(part, theirs, own, deep - 1) for part in function.body]
        read, given = (frozenset[str]().union(*each) for each in zip(*parts, strict=True))
        return Touched(read, given)

    def _property(self, node: ast.Attribute) -> Function | None:
        """The function that is run where an attribute is read."""
        found = self.functions.get(node.attr) if isinstance(node.ctx, ast.Load) else None
        return found if found is not None and is_property(found) else None

    def read_by_functions(self, node: ast.AST) -> set[str]:
        """What functions and properties of these files read that a node comes to."""
        return {*self.touched(node, {}, self.local).read - self.touched(node, {}, self.local, 0).read}

    def _meet(self, ones: Iterable[str], others: Collection[str]) -> bool:
        return any(
            touches(one, other) and not isinstance(self.value(max(one, other, key=len)), torch.Tensor)
            for one in ones
            for other in others
        )


def by_name(source: Source) -> dict[str, Function]:
    """The functions of a file, of two of a name the last."""
    return {node.name: node for node in source.parents if isinstance(node, Function)}


def is_property(function: Function) -> bool:
    """Whether a function is run where an attribute is read."""
    return any(last_name(each) in ("property", "cached_property") for each in function.decorator_list)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """What an ``a.b.c`` begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        yield node


def _outside(path: str, named: Mapping[str, str], local: Collection[str]) -> str:
    """A function's path as its caller would write it, or "" where it is the function's own."""
    first, dot, rest = path.partition(".")
    if first in local:
        return ""
    return f"{named.get(first, first)}{dot}{rest}"
