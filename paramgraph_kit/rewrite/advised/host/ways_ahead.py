"""The ways that lead from a step to a line of a helper's, and what a step does ahead of a line."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from paramgraph_kit.rewrite.source.edits import Function, locals_of, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called

CHANGES = ("append", "extend", "pop", "popleft", "insert", "update", "clear", "remove", "appendleft")
_DEEP = 6
_IN_PLACE = re.compile(r"[^_]_$")


@dataclass(frozen=True, slots=True)
class Frame:
    """A function, where in it something is read, and the call in the step's next function that leads there."""

    function: Function
    at: ast.stmt
    above: Frame | None = None
    call: ast.Call | None = None


def levels(frame: Frame) -> Iterator[Frame]:
    """A frame, and those that lead to it, up to the step's."""
    level: Frame | None = frame
    while level is not None:
        yield level
        level = level.above


@dataclass(slots=True)
class Ways:
    """Asks it of one statement."""

    place: Place

    def ways(self, function: Function, at: ast.stmt, deep: int) -> Iterator[Frame]:
        """Each way of calls that leads from the step to a line."""
        place = self.place
        if self.is_entry(function) or deep > _DEEP:
            yield Frame(function, at)
            return
        calls = [*self.calls_of(function)]
        for call in calls:
            outer = place.source.function_of(call)
            if outer is None or outer is function:
                continue
            for above in self.ways(outer, place.source.statement_of(call), deep + 1):
                yield Frame(function, at, above, call)
        if not calls:
            yield Frame(function, at)

    def is_entry(self, function: Function) -> bool:
        """Whether it is what is captured: of two of that name the one that calls the other."""
        if function.name != self.place.entry:
            return False
        named = [n for n in self.place.source.parents if isinstance(n, Function) and n.name == function.name]
        others = [n for each in named if each is not function for n in ast.walk(each) if isinstance(n, ast.Call)]
        return not any(called(n) == function.name for n in others)

    def calls_of(self, function: Function) -> Iterator[ast.Call]:
        """The calls of a function in its file, by its name, or of objects of its class."""
        owner = self.place.source.parents.get(function)
        for node in self.place.source.parents:
            if not isinstance(node, ast.Call):
                continue
            if called(node) == function.name and function.name not in ("forward", "__call__"):
                yield node
            elif function.name in ("forward", "__call__") and isinstance(owner, ast.ClassDef):
                held = self.place.value(path_of(node.func)) if path_of(node.func) else None
                if type(held).__name__ == owner.name:
                    yield node

    def stores(self, path: str) -> Iterator[tuple[Function, ast.stmt]]:
        """The lines of functions that give a path another value, but where objects are made."""
        for function in (n for n in self.place.source.parents if isinstance(n, Function) and n.name != "__init__"):
            nodes = [n for part in function.body for n in within(part)]
            shared = {name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
            for node in (n for n in nodes if _changes(n, path, shared, function)):
                yield function, self.place.source.statement_of(node)

    def comes_to(self, *names: str) -> set[str]:
        """Some names, with those of all that the file's functions of these names call, and so on."""
        every = [n for n in self.place.source.parents if isinstance(n, Function)]
        found = {*names}
        while (
            more := {called(n) for f in every if f.name in found for n in ast.walk(f) if isinstance(n, ast.Call)}
            - found
        ):
            found |= more
        return found

    def ends(self, store: ast.stmt, at: ast.stmt, function: Function) -> bool:
        """Whether a line stands in a branch that leaves the function, or in the other one of an ``if``."""
        below: ast.AST = store
        above = self.place.source.parents.get(store)
        inside = {*self.place.source.above(at)}
        while above is not None and above is not function:
            if isinstance(above, ast.If):
                if above in inside:
                    own = above.body if below in above.body else above.orelse
                    return not any(at in {*ast.walk(part)} for part in own)
                block = above.body if below in above.body else above.orelse
                if block and isinstance(block[-1], (ast.Return, ast.Raise)):
                    return True
            below, above = above, self.place.source.parents.get(above)
        return False

    def loops(self, node: ast.AST, function: Function) -> set[ast.AST]:
        """What goes round there: a loop, or a comprehension."""
        above = node if isinstance(node, (ast.For, ast.While)) else self.place.source.parents.get(node)
        found = set[ast.AST]()
        while above is not None and above is not function:
            found |= {above} if isinstance(above, (ast.For, ast.While, ast.comprehension, ast.GeneratorExp)) else set()
            above = self.place.source.parents.get(above)
        return found

    def is_done_once(self, frame: Frame) -> bool:
        """Whether the step comes to it once, in each call."""
        return all(self.is_always_done(each.at, each.function) for each in levels(frame))

    def is_always_done(self, node: ast.stmt, function: Function) -> bool:
        """Whether a function does it, whatever it decides: in no loop and no branch."""
        above = self.place.source.parents.get(node)
        while isinstance(above, ast.With):
            above = self.place.source.parents.get(above)
        return above is function


def _changes(node: ast.AST, path: str, shared: Collection[str], function: Function) -> bool:
    """Whether a node gives a path another value, or something of another object that is called so."""
    last = path.rpartition(".")[2]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id == path and path in shared
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        target = path_of(node)
        if target.rpartition(".")[2] != last or (isinstance(node, ast.Attribute) and "." not in path):
            return False
        return "." in target or target not in locals_of(function)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        changes = node.func.attr in CHANGES or _IN_PLACE.search(node.func.attr)
        return bool(changes) and path_of(node.func.value).rpartition(".")[2] == last
    return False
