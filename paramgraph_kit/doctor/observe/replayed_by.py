"""Lines that replay a graph which holds a function alone, ``with graph(g): net.step()``: they stand for its calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, every, last_name, tree_of
from paramgraph_kit.doctor.observe.captures_written import graph_of

_LAUNCHED = "()"  # behind a name that is called as it is: `run = capture(step)`


class _Captures(NamedTuple):
    """A function of the user's that captures another one, which it is given: ``def capture(fn): ...``."""

    number: int  # of the argument
    argument: str
    graph: str
    gives: ast.expr | None


def graphs_of(file: str, function: Any) -> frozenset[str]:
    """How the graphs of a file are called into which that function is captured, and nothing else."""
    name = getattr(function, "__name__", "")
    tree = tree_of(file) if name and name not in ("forward", "__call__", "<lambda>") else None
    return frozenset(graph for called, graph in _captured(tree) if called == name) if tree is not None else frozenset()


def replays_it(call: ast.Call, graphs: frozenset[str]) -> bool:
    """Whether a call replays one of these."""
    launched = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "replay" else None
    if launched is not None and last_name(launched) in graphs:
        return True
    return bool(graphs) and last_name(call.func) + _LAUNCHED in graphs


def captures_it(call: ast.Call, file: str, function: Any) -> bool:
    """Whether a call gives that function to one of the user's which captures it, and nothing else."""
    tree = tree_of(file)
    helper = _helpers(tree).get(last_name(call.func)) if tree is not None else None
    return helper is not None and last_name(_given(helper, call)) == getattr(function, "__name__", "")


@lru_cache(maxsize=64)
def _captured(tree: ast.Module) -> tuple[tuple[str, str], ...]:
    """What each capture calls, and its graph; one with other lines beside that may be of something else."""
    found = [*_blocks(tree)]
    helpers = _helpers(tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) in helpers] if helpers else []
    for call in calls:
        helper = helpers[last_name(call.func)]
        if called := last_name(_given(helper, call)):
            found += [(called, graph) for graph in _given_back(helper, call, tree)]
    return tuple(found)


def _blocks(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.With) and len(n.body) == 1):
        graph, value = graph_of(node, {}), getattr(node.body[0], "value", None)
        if graph is not None and isinstance(value, ast.Call):
            yield last_name(value.func), last_name(graph)


@lru_cache(maxsize=64)
def _helpers(tree: ast.Module) -> dict[str, _Captures]:
    found = dict[str, _Captures]()
    for node in every(tree):
        if not isinstance(node, FUNCTIONS) or isinstance(node, ast.Lambda):
            continue
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        names = names[1:] if names[:1] == ["self"] else names
        captured = [(names.index(called), called, graph) for called, graph in _blocks(node) if called in names]
        if len(captured) == 1:
            last = node.body[-1]
            found[node.name] = _Captures(*captured[0], last.value if isinstance(last, ast.Return) else None)
    return found


def _given(helper: _Captures, call: ast.Call) -> ast.expr:
    by_name = next((k.value for k in call.keywords if k.arg == helper.argument), None)
    there = call.args[helper.number : helper.number + 1]
    return by_name or (there[0] if there else ast.Constant(None))


def _given_back(helper: _Captures, call: ast.Call, tree: ast.Module) -> Iterator[str]:
    """How its caller names the graph that it captured into, or what launches that."""
    parts = [helper.gives, *getattr(helper.gives, "elts", [])]
    for number, part in enumerate(parts):
        launches = isinstance(part, ast.Attribute) and part.attr == "replay"
        named = part.value if isinstance(part, ast.Attribute) and launches else part
        if named is None or last_name(named) != helper.graph:
            continue
        for target, value in (pair for n in every(tree) for pair in _assigned(n) if pair[1] is call):
            elements = [target, *getattr(target, "elts", [])]
            if value is call and number < len(elements) and (name := last_name(elements[number])):
                yield name + _LAUNCHED * launches
    if helper.gives is None:  # an attribute of its own object, which its methods replay
        yield helper.graph


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
