"""Results of a function that code around it keeps from call to call: each replay of a graph would write over them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import (
    LOOPS,
    elements_of,
    here,
    last_line,
    last_name,
    nodes_of,
    pairs_of,
    tree_of,
)
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.named_lists import emptied_behind
from paramgraph_kit.doctor.observe.parts_of_results import Holds, Results, kept_from_round_to_round
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Frame

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_KEEPS = ("append", "add", "appendleft", "setdefault")
_MOST = 3  # functions that hand a result on
_Parts = frozenset[str]  # as they are written
_Line = tuple[str, int, str, _Parts]  # a file, a line, its function, and what it keeps


def kept(
    scopes: Iterable[Scope],
    function: Any,
    own: Iterable[CodeType],
    result: Any,
    holds: Holds,
    known: Iterable[ast.Call] = (),
    *,
    by_key: bool = False,
) -> dict[Frame, _Parts]:
    """The lines outside of the function that keep what it returns as it is, in a loop around its call; which parts.

    Args:
        scopes: the code around it.
        function: what is called.
        own: the functions that it runs.
        result: one of its results.
        holds: whether a replay writes to a part of it.
        known: calls of the function that their names alone do not tell.
        by_key: whether it may have a graph for each of several keys: results of as many are not the same memory.
    """
    also = [*known]
    mine = [(code.co_filename, code.co_firstlineno, last_line(code)) for code in own]
    found: dict[tuple[str, int], tuple[Frame, _Parts]] = {}
    for scope in scopes:
        own_name = getattr(scope.body, "name", "<module>")
        search = Search(scope.names, function, set())

        meant = [each for each in also if not _moves(each, scope.body, by_key=by_key)]

        def calls(node: ast.AST, search: Search = search, meant: list[ast.Call] = meant) -> bool:
            return search.calls(node) or any(node is each for each in meant)

        for file, line, name, parts in _lines(scope, search, Results({}, calls, result, holds)):
            is_around = (file, name) == (scope.file, own_name)  # not of a method beside it, which is handed results
            if not (is_around and any(file == of and first <= line <= last for of, first, last in mine)):
                text = linecache.getline(file, line).strip()
                found[file, line] = Frame(display_name(file), line, name, text), parts
    return dict(found.values())


def _moves(call: ast.Call, body: ast.AST, *, by_key: bool) -> bool:
    """Whether each round calls another object, or gives what the number of the round makes, perhaps of another size."""
    around = [
        n for n in ast.walk(body) if isinstance(n, (*LOOPS, *_COMPREHENSIONS)) and any(x is call for x in ast.walk(n))
    ]
    stored = [n for each in around for n in ast.walk(each) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    root: ast.AST = call.func
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Name) and any(n.id == root.id for n in stored):
        return True
    given = [n for each in (*call.args, *call.keywords) for n in ast.walk(each)]
    sizes = [p for n in given if isinstance(n, ast.Call) for p in n.args] + [
        n for n in given if isinstance(n, ast.Slice)
    ]
    names = {n.id for each in sizes for n in ast.walk(each) if isinstance(n, ast.Name)}
    return by_key and not names.isdisjoint(n.id for n in stored)


def _lines(scope: Scope, search: Search, results: Results) -> Iterator[_Line]:
    own = getattr(scope.body, "name", "<module>")
    every = [n for statement in scope.body.body for n in here(statement)]
    for node in every:
        if isinstance(node, _COMPREHENSIONS) and results.has(node.elt):
            yield scope.file, node.lineno, own, frozenset()
        if isinstance(node, LOOPS):
            inside = [n for statement in node.body for n in here(statement)]
            there = results.named_in(inside)
            if not there.names and not any(map(results.calls, inside)):
                continue
            lines = dict.fromkeys(kept_from_round_to_round(node, every, there), frozenset[str]())
            yield from ((scope.file, line, own, parts) for line, parts in [*_kept_in(inside, there), *lines.items()])
            for call in (n for n in inside if isinstance(n, ast.Call)):
                called = _function(call.func, search._value) or _by_its_class(call.func, scope)
                if called is not None and not results.calls(call):
                    yield from _kept_by(*called, _given(call, called, there), results.holds)


def _kept_in(nodes: list[ast.AST], results: Results) -> Iterator[tuple[int, _Parts]]:
    """Lines that append a result to something, or put it at a key that moves, with which parts are results."""
    for n in nodes:
        what: ast.expr | None = None
        if isinstance(n, ast.AugAssign) and isinstance(n.value, ast.List):
            what = n.value
        if isinstance(n, ast.Call) and last_name(n.func) == "extend" and n.args and isinstance(n.args[0], ast.List):
            what = n.args[0]
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _KEEPS and n.args:
            what = n.args[-1]
        elif isinstance(n, ast.Assign) and isinstance(target := n.targets[0], ast.Subscript):
            constant = isinstance(target.slice, (ast.Constant, ast.Slice, ast.Tuple))  # a place of a tensor's is a copy
            what = None if constant or isinstance(n.value, (ast.Tuple, ast.List, ast.Dict)) else n.value
            what = what if isinstance(what, (ast.Name, ast.Attribute, ast.Subscript)) else None
        if what is None:
            continue
        parts = what.values if isinstance(what, ast.Dict) else [*elements_of(what)]
        if isinstance(n, ast.Call) and emptied_behind(n, nodes):
            continue
        kept = [each for each in parts if results.has(each) and not results.is_given_anew(each, nodes, n)]
        if kept:
            yield n.lineno, frozenset(map(ast.unparse, kept))  # type: ignore[attr-defined]


def _function(node: ast.expr, value: Callable[[ast.expr], Any]) -> tuple[FunctionType, Any] | None:
    """A function of the user's that is called, and what it is a method of; None where the text does not tell."""
    found, owner = value(node), None
    if (found is None or found is NOTHING) and isinstance(node, ast.Attribute):
        owner = value(node.value)
        found = getattr_static(type(owner), node.attr, None) if owner is not None and owner is not NOTHING else None
    elif hasattr(found, "__func__"):
        found, owner = found.__func__, found.__self__
    if not isinstance(found, FunctionType) or is_library(found.__code__.co_filename):
        return None
    return found, owner


def _by_its_class(node: ast.expr, scope: Scope) -> tuple[FunctionType, Any] | None:
    """The same of a method of an object that only its line tells the class of: ``self.log = Log()``."""
    tree = tree_of(scope.file)
    if not isinstance(node, ast.Attribute) or tree is None:
        return None
    held = last_name(node.value)
    pairs = [pair for n in ast.walk(tree) for pair in pairs_of(n) if last_name(pair[0]) == held]
    made = {last_name(value.func) if isinstance(value, ast.Call) else "" for _, value in pairs}
    kind = scope.names.get(made.pop()) if len(made) == 1 else None
    found = getattr_static(kind, node.attr, None) if isinstance(kind, type) else None
    if not isinstance(found, FunctionType) or is_library(found.__code__.co_filename):
        return None
    return found, kind


def _given(call: ast.Call, called: tuple[FunctionType, Any], results: Results) -> dict[str, Any]:
    """What a function calls the results that it is given."""
    code, owner = called[0].__code__, called[1]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [part for each in call.args for part in results.parts(each)]
    found = dict(zip(names[owner is not None :], given, strict=False))
    found |= {k.arg: results.of(k.value) for k in call.keywords if k.arg in names}
    return {name: part for name, part in found.items() if part is not NOTHING and results.holds(part)}


def _kept_by(
    function: FunctionType, owner: Any, given: dict[str, Any], holds: Holds, most: int = _MOST
) -> Iterator[_Line]:
    """Lines of a function that keep what it is given, in what outlives its call."""
    if not given or not most:
        return
    code = function.__code__
    nodes = [*nodes_of(code)]
    made = {t.id for n in nodes if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    known = {code.co_varnames[0]: owner} if owner is not None else {}
    results = Results(given, lambda _: False, None, holds).named_in(nodes)

    def is_own(node: ast.AST) -> bool:
        holder = node.func.value if isinstance(node, ast.Call) else node.targets[0].value  # type: ignore[attr-defined]
        return isinstance(holder, ast.Name) and holder.id in made - {*_outer(nodes)}

    keeping = [n for n in nodes if not _keeps(n) or not is_own(n)]
    for line, parts in _kept_in(keeping, results):
        yield code.co_filename, line, code.co_name, parts
    for call in (n for n in nodes if isinstance(n, ast.Call)):
        inner = _function(call.func, lambda n: path_value(n, known, function.__globals__))
        if inner is not None and inner[0] is not function:
            as_is = {n: v for n, v in results.names.items() if not results.is_given_anew(ast.Name(n), nodes, call)}
            yield from _kept_by(*inner, _given(call, inner, replace(results, names=as_is)), holds, most - 1)


def _keeps(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _outer(nodes: Iterable[ast.AST]) -> Iterator[str]:
    return (name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names)
