"""Objects that capture when they are asked first, as before that: their tables of graphs empty, their graphs not made.

``if n not in self.graphs: self.capture(n)`` captures once, and what the capture was given then is nobody's by now.
"""

from __future__ import annotations

import ast
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import unwrap
from types import FunctionType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, here, last_name, nodes_of
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import is_a, is_graph
from paramgraph_kit.doctor.observe.held_objects import methods_by_user, reachable
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.driver.files import is_library

_DEEP = 3  # methods that call one which captures
_MOST = 64  # entries of a table
_TABLES = (dict, OrderedDict, defaultdict)
Undo = Callable[[], None]


@contextmanager
def as_before_captures(function: Any, given: Iterable[Any]) -> Iterator[bool]:
    """While this lasts nothing has been captured that is captured when it is first asked for; whether there is such."""
    undo = list[Undo]()
    try:
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            for owner in reachable([function, *given]):
                for path, asked in _guards(owner):
                    undo += _taken_back(path, asked)
        yield bool(undo)
    finally:
        for each in reversed(undo):
            each()


def _guards(owner: Any) -> Iterator[tuple[ast.expr, dict[str, Any]]]:
    """What methods of an object ask before they capture, with what their names mean."""
    kind: Any = type(owner)
    methods = {f.__name__: f for f in methods_by_user(kind)}
    capture = {name for name, f in methods.items() if captured_in(f.__code__)}
    made = {name for f in methods.values() for name in f.__code__.co_names if _captures_when_made(f, name)}
    for _ in range(_DEEP):
        capture |= {name for name, f in methods.items() if not (capture | made).isdisjoint(_called(f))}
    for name in capture - {"__init__"}:
        code = unwrap(methods[name]).__code__
        nodes = [*nodes_of(code)]
        names = {**methods[name].__globals__, code.co_varnames[0]: owner} if code.co_argcount else {}
        assigned = [n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
        given = {n.targets[0].id: n.value for n in assigned}  # type: ignore[attr-defined]
        blocks = [statement for block in captured_in(code) for statement in block]
        for test in (n for n in nodes if isinstance(n, ast.If)):
            captures = _has_capture(test.body, capture | made, blocks)
            gives = any(isinstance(n, ast.Return) for s in test.body for n in here(s, FUNCTIONS))
            gives = gives or _has_capture(test.orelse, capture | made, blocks)
            for part in ast.walk(test.test) if captures or gives else ():
                yield from ((path, names) for path in _asked(part, given, captures))


def _has_capture(body: list[ast.stmt], capture: set[str], blocks: list[ast.stmt]) -> bool:
    nodes = [n for s in body for n in here(s, FUNCTIONS)]
    calls = (n.func for n in nodes if isinstance(n, ast.Call))
    return any(n in blocks for n in nodes) or any(last_name(f) in capture for f in calls)


def _captures_when_made(function: FunctionType, name: str) -> bool:
    """Whether a name of a function's file is a class, or a function, of the user's that captures when it is called."""
    value = function.__globals__.get(name)
    methods = methods_by_user(value) if isinstance(value, type) else (value,) if isinstance(value, FunctionType) else ()
    return any(captured_in(f.__code__) for f in methods if not is_library(f.__code__.co_filename))


def _called(function: FunctionType) -> set[str]:
    return {last_name(n.func) for n in nodes_of(function.__code__) if isinstance(n, ast.Call)}


def _asked(part: ast.AST, given: dict[str, ast.expr], captures: bool) -> Iterator[ast.expr]:
    """The table, the graph or the flag that a test asks: whether there is none, or, to give it back, whether it is."""
    if isinstance(part, ast.Compare) and len(part.ops) == 1:
        if isinstance(part.ops[0], ast.NotIn if captures else ast.In):
            yield part.comparators[0]
        elif isinstance(part.ops[0], ast.Is if captures else ast.IsNot):
            yield from _held_by(part.left, given)
    elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) and captures:
        yield from _held_by(part.operand, given)


def _held_by(path: ast.expr, given: dict[str, ast.expr]) -> Iterator[ast.expr]:
    value = given.get(path.id, path) if isinstance(path, ast.Name) else path
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        value = value.func.value
    if isinstance(value, (ast.Name, ast.Attribute)):
        yield value


def _taken_back(path: ast.expr, names: dict[str, Any]) -> Iterator[Undo]:
    """Take what a path holds of graphs away, as it was ahead of the first; yields what puts it back."""
    held = path_value(path, names, {})
    is_table = type(held) in _TABLES
    if is_table and any(map(_has_graph, [*held.values()][:_MOST])):
        whole = dict(held)
        held.clear()

        def filled() -> None:
            held.clear()
            held.update(whole)

        yield filled
    elif isinstance(path, ast.Attribute) and (held is True or (not is_table and _has_graph(held))):
        owner = path_value(path.value, names, {})
        setattr(owner, path.attr, False if held is True else None)
        yield lambda: setattr(owner, path.attr, held)


def _has_graph(value: Any) -> bool:
    """Whether it is a graph, or an object, a tuple or a table that has one."""
    if is_graph(value):
        return True
    parts: Iterable[Any] = value if type(value) in (tuple, list) else ()
    parts = value.values() if type(value) is dict else parts
    parts = parts or ([] if is_a(value, type) else getattr(value, "__dict__", {}).values())
    return any(map(is_graph, [*parts][:_MOST]))
