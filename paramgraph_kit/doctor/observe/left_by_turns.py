"""Numbers that a graph reads, and that a branch gives another value which no call has taken, each tried once.

``if self.bad > 7: self.lr *= 0.5``: a call in which it is another one shows whether a replay goes on with the first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, pairs_of
from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_entries import FUNCTIONS
from paramgraph_kit.doctor.observe.captured_values import NOTHING, CapturedValues, Names, Use
from paramgraph_kit.doctor.observe.held import all_cells_of, is_a, is_graph
from paramgraph_kit.doctor.observe.held_objects import methods_by_user, reachable
from paramgraph_kit.doctor.observe.left_by_calls import Place, called_places, set_flag
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.other_entries import other
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.rare_turns import Given, rare_lines
from paramgraph_kit.doctor.observe.short_names import in_full
from paramgraph_kit.driver.files import display_name, is_library

_MOST = 12  # lines that are tried


def turned_lines(caller: Caller, call: Call, ran: Iterable[CodeType]) -> list[Given]:
    """Statements of the functions that a call has run, which a later one may run, too, and which capture nothing."""
    functions = [*_functions(caller)]
    codes = {f.__name__: f.__code__ for f, _ in functions}
    capture = _capturing(codes)
    anew = capture | {name for code in codes.values() for name in _asked_ahead(code, capture)}

    def captures_again(inside: list[ast.AST], names: Names) -> bool:
        paths = [n for n in inside if isinstance(n, (ast.Attribute, ast.Name))]
        code = functions[0][0].__code__
        return any(last_name(n) in anew or _has_graph(Use(code, n, False, names).value()) for n in paths)

    moved = {c.name.rpartition(".")[2] for c in call.changes} | {str(c.key) for c in call.changes if c.key is not None}
    given = {name for name, value in caller.given().items() if type(value) in NUMBERS}
    found = list[Given]()
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        found += rare_lines(functions, {*call.ran(), *ran}, moved, given, captures_again)
    return found


def call_as_turned(caller: Caller, lines: Iterable[Given], regions: Iterable[Region]) -> set[tuple[str, int]]:
    """Call the function once for each line that gives a number another value; those that a replay did not follow."""
    values = [r.values for r in regions if r.values is not None]
    read = {word for each in values for word in _words(each)}
    by_line: dict[int, tuple[Given, list[Place]]] = {}
    for given in lines:
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            by_line.setdefault(id(given[1]), (given, []))[1].extend(_places(given, read))
    found = set[tuple[str, int]]()
    for given, places in [each for each in by_line.values() if each[1]][:_MOST]:
        held = [(each, dict(each.moved)) for each in values]
        try:
            with suppress(Exception):
                for write, _, new in places:
                    write(new)
            call = caller.call(caller.args, caller.kwargs)
        finally:
            for write, then, _ in reversed(places):
                write(then)
        for each, then in held:
            more = {key: m for key, m in each.moved.items() if key not in then}
            if call.ended is not None or call.captures or not more:
                each.moved = then
                continue
            line = _as_given(given)
            each.moved = {**then, **{key: replace(m, given=line) for key, m in more.items()}}
            found.add((display_name(line[0]), line[2].lineno))
    return found


def _places(given: Given, read: set[str]) -> Iterator[Place]:
    """What a line gives another value, as far as that is a number which what is captured may read."""
    function, node, target, names = given
    if target is None:
        yield from called_places(function.__code__, node.value, names)  # type: ignore[attr-defined]
        return
    target = in_full(target, names.short)
    yield from set_flag(function.__code__, target, getattr(node, "value", None), names)
    use = Use(function.__code__, target, False, names)
    then = use.value()
    key = target.slice.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) else ""
    if (
        not (type(then) in (*NUMBERS, str, *FUNCTIONS) or is_a(then, Enum))
        or (last_name(target) or str(key)) not in read
    ):
        return
    value: Any = getattr(node, "value", None)
    if type(then) in NUMBERS:
        new = _new(value, then, isinstance(node, ast.AugAssign))
    else:
        new = value.value if isinstance(value, ast.Constant) else Use(function.__code__, value, False, names).value()
        if type(new) is not type(then) and not (type(then) in FUNCTIONS and type(new) in FUNCTIONS):
            return
    if new is not then and (new != then or type(new) is not type(then)):
        yield use.write, then, new


def _new(value: ast.expr | None, then: Any, adds: bool) -> Any:
    """What a line may give: a constant of its, or another number."""
    parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    constants = [each.value for each in parts if isinstance(each, ast.Constant)]
    if adds or len(constants) < len(parts):
        return other(then)
    return next((each for each in constants if each != then), then)


def _words(values: CapturedValues) -> set[str]:
    """The names and keys by which a capture reads something."""
    texts = [use.text for use in values.uses] + [part for each in values.then for part in each]
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _as_given(given: Given) -> tuple[Any, ...]:
    function, node, target, _ = given
    values = dict(pairs_of(node))
    value = getattr(node, "value", None)
    return (
        function.__code__.co_filename,
        function.__name__,
        node,
        target,
        values.get(target, value) if target else value,
    )


def _functions(caller: Caller) -> Iterator[tuple[FunctionType, Any]]:
    """The user's functions that a call may run, each with the object that it belongs to."""
    own = [f for f in map(unwrap, caller.state.functions) if isinstance(f, FunctionType)]
    plain = [f for f in own if not is_library(f.__code__.co_filename)]
    named = [f.__globals__.get(name) for f in plain for name in f.__code__.co_names]
    cells = [cell.cell_contents for f in plain for cell in all_cells_of(f).values() if _is_filled(cell)]
    seen = set[int]()
    for owner in reachable([caller.function, *caller.args, *caller.kwargs.values(), *named, *cells]):
        kind: Any = type(owner)
        for function in methods_by_user(kind):
            seen.add(id(function.__code__))
            yield function, owner
    yield from ((f, None) for f in plain if id(f.__code__) not in seen)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not NOTHING
    except ValueError:
        return False


def _capturing(codes: dict[str, CodeType]) -> set[str]:
    """The functions that capture, or call one that does."""
    found = {name for name, code in codes.items() if captured_in(code)}
    for _ in codes:
        calls = {name for name, code in codes.items() if not found.isdisjoint(code.co_names)}
        if calls <= found:
            break
        found |= calls
    return found


def _asked_ahead(code: CodeType, capture: set[str]) -> Iterator[str]:
    """The attributes that decide whether a function captures: who sets one has it captured again."""
    blocks = {id(statement) for block in captured_in(code) for statement in block}
    for branch in (n for n in nodes_of(code) if isinstance(n, ast.If)):
        inside = [n for s in branch.body for n in ast.walk(s)]
        calls = {last_name(n.func) for n in inside if isinstance(n, ast.Call)}
        if not capture.isdisjoint(calls) or any(id(n) in blocks for n in inside):
            paths = [n for n in ast.walk(branch.test) if isinstance(n, (ast.Attribute, ast.Name))]
            yield from (last_name(n) for n in paths if not isinstance(n, ast.Name) or n.id not in code.co_varnames)


def _has_graph(value: Any) -> bool:
    parts = [*value.values()] if type(value) is dict else [*value] if type(value) in (list, tuple) else [value]
    return any(map(is_graph, parts))
