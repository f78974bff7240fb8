"""Results of a function that code around it keeps from call to call: each replay of a graph would write over them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, elements_of, here, last_line, nodes_of
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Frame

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_KEEPS = ("append", "add", "appendleft", "setdefault")
_MOST = 3  # functions that hand a result on
_Line = tuple[str, int, str]  # a file, a line, and its function
Holds = Callable[[Any], bool]


def kept(
    scopes: Iterable[Scope], function: Any, own: Iterable[CodeType], result: Any = None, holds: Holds | None = None
) -> list[Frame]:
    """The lines outside of the function that keep what it returns as it is, in a loop around its call.

    ``result`` is one of those, and ``holds`` says of a part of it whether a replay writes there.
    """
    mine = [(code.co_filename, code.co_firstlineno, last_line(code)) for code in own]
    found: dict[tuple[str, int], Frame] = {}
    for scope in scopes:
        own_name = getattr(scope.body, "name", "<module>")
        for file, line, name in _lines(scope, Search(scope.names, function, set()), result, holds):
            is_around = (file, name) == (scope.file, own_name)  # not of a method beside it, which is handed results
            if not (is_around and any(file == of and first <= line <= last for of, first, last in mine)):
                text = linecache.getline(file, line).strip()
                found[file, line] = Frame(display_name(file), line, name, text)
    return list(found.values())


def _lines(scope: Scope, search: Search, result: Any, holds: Holds | None) -> Iterator[_Line]:
    own = getattr(scope.body, "name", "<module>")
    for node in (n for statement in scope.body.body for n in here(statement)):
        if isinstance(node, _COMPREHENSIONS) and search.calls(node.elt):
            yield scope.file, node.lineno, own
        if isinstance(node, LOOPS):
            inside = [n for statement in node.body for n in here(statement)]
            results = {*_named(inside, search, result, holds)}
            yield from ((scope.file, line, own) for line in _kept_in(inside, results, search.calls))
            for call in (n for n in inside if isinstance(n, ast.Call)):
                called = _function(call.func, search._value)
                if called is not None and not search.calls(call):
                    given = _given(call, called, results, lambda each: _are_results(each, search, result, holds))
                    yield from _kept_by(*called, given)


def _named(inside: list[ast.AST], search: Search, result: Any, holds: Holds | None) -> Iterator[str]:
    """The names that a loop gives to results, and of several to those of their parts that count."""
    for n in (n for n in inside if isinstance(n, ast.Assign) and search.calls(n.value)):
        for target in n.targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, (ast.Tuple, ast.List)):
                parts = _are_results(ast.Starred(n.value), search, result, holds)
                pairs = zip(target.elts, parts, strict=False) if len(parts) == len(target.elts) else ()
                yield from (each.id for each, counts in pairs if counts and isinstance(each, ast.Name))


def _are_results(node: ast.expr, search: Search, result: Any, holds: Holds | None) -> list[bool]:
    """For each argument that an expression stands for whether it is a result: ``step(x)``, ``*step(x)``."""
    if not isinstance(node, ast.Starred):
        return [search.calls(node)]
    if not search.calls(node.value) or not isinstance(result, (tuple, list)):
        return []
    return [holds is None or holds(part) for part in result]


def _kept_in(nodes: list[ast.AST], results: set[str], calls: Callable[[ast.AST], bool]) -> Iterator[int]:
    """Lines that append a result to something, or put it at a key that moves."""
    for n in nodes:
        what: ast.expr | None = None
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _KEEPS and n.args:
            what = n.args[-1]
        elif isinstance(n, ast.Assign) and isinstance(target := n.targets[0], ast.Subscript):
            constant = isinstance(target.slice, (ast.Constant, ast.Slice, ast.Tuple))  # a place of a tensor's is a copy
            what = None if constant or not isinstance(n.value, ast.Name) else n.value
        if what is None:
            continue
        names = {e.id for e in elements_of(what) if isinstance(e, ast.Name)}
        if calls(what) or any(not _is_given_anew(name, nodes, n, calls) for name in names & results):
            yield n.lineno  # type: ignore[attr-defined]


def _is_given_anew(name: str, nodes: list[ast.AST], at: ast.AST, calls: Callable[[ast.AST], bool]) -> bool:
    """Whether a name is something else by a line: ``loss = loss.item()``."""
    made = [n for n in nodes if isinstance(n, ast.Assign) and not calls(n.value) and n.lineno < at.lineno]  # type: ignore[attr-defined]
    return any(isinstance(t, ast.Name) and t.id == name for n in made for each in n.targets for t in elements_of(each))


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


def _given(
    call: ast.Call, called: tuple[FunctionType, Any], results: set[str], are: Callable[[ast.expr], list[bool]]
) -> set[str]:
    """What a function calls the results that it is given."""
    code, owner = called[0].__code__, called[1]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [
        counts
        for each in call.args
        for counts in ([True] if isinstance(each, ast.Name) and each.id in results else are(each))
    ]
    found = {name for name, counts in zip(names[owner is not None :], given, strict=False) if counts}
    return found | {
        k.arg for k in call.keywords if k.arg in names and isinstance(k.value, ast.Name) and k.value.id in results
    }


def _kept_by(function: FunctionType, owner: Any, given: set[str], most: int = _MOST) -> Iterator[_Line]:
    """Lines of a function that keep what it is given, in what outlives its call."""
    if not given or not most:
        return
    code = function.__code__
    nodes = [*nodes_of(code)]
    made = {t.id for n in nodes if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    known = {code.co_varnames[0]: owner} if owner is not None else {}

    def is_own(node: ast.AST) -> bool:
        holder = node.func.value if isinstance(node, ast.Call) else node.targets[0].value  # type: ignore[attr-defined]
        return isinstance(holder, ast.Name) and holder.id in made - {*_outer(nodes)}

    keeping = [n for n in nodes if not _keeps(n) or not is_own(n)]
    for line in _kept_in(keeping, given, lambda _: False):
        yield code.co_filename, line, code.co_name
    for call in (n for n in nodes if isinstance(n, ast.Call)):
        inner = _function(call.func, lambda n: path_value(n, known, function.__globals__))
        if inner is not None and inner[0] is not function:
            names = {name for name in given if not _is_given_anew(name, nodes, call, lambda _: False)}
            yield from _kept_by(*inner, _given(call, inner, names, lambda _: [False]), most - 1)


def _keeps(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)


def _outer(nodes: Iterable[ast.AST]) -> Iterator[str]:
    return (name for n in nodes if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names)
