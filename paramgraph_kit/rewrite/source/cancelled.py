"""Gradients that lines take away between the backward pass and the step, in some calls and not in others.

A graph has the kernels of the parameters that had gradients at its capture, and lines on the host ask for ``p.grad``
when they run, never again at a replay. SGD's fused kernels take no momentum that begins later than the others'.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from paramgraph_kit.doctor.explain.syntax import every as nodes_in
from paramgraph_kit.rewrite.source.edits import Function, Source, within
from paramgraph_kit.rewrite.source.place import called

_DEEP = 3  # functions that call one another
_Placed = tuple[Source, ast.FunctionDef | ast.AsyncFunctionDef]
_TAKEN, _BACK, _STEP = "taken", "backward", "step"


def takes_gradients_at_times(sources: Iterable[Source]) -> bool:
    """Whether lines give gradients None ahead of a step in some calls, and leave them in others."""
    return _at_times(tuple(source.tree for source in sources))


@lru_cache(64)  # each way of rewriting asks
def _at_times(trees: tuple[ast.Module, ...]) -> bool:
    taking, named = _taking(trees)
    if not any(taking.values()):
        return False
    does = {name: _does(name, named, _DEEP) for name in named}
    return any(_between([*_own(f)], taking[id(f)], does) for placed in named.values() for _, f in placed)


def taken_in(sources: Iterable[Source], function: Function) -> list[ast.AST]:
    """Lines of a function that give gradients None in some calls, or call helpers that do."""
    return [*_taking(tuple(source.tree for source in sources))[0].get(id(function), ())]


@lru_cache(64)
def _taking(trees: tuple[ast.Module, ...]) -> tuple[dict[int, list[ast.AST]], dict[str, list[_Placed]]]:
    """By function the lines that do that at times, or call such helpers; all functions by name."""
    placed = [(Source("", tree), tree) for tree in trees]  # for what is around a node alone
    functions = [(source, n) for source, tree in placed for n in nodes_in(tree) if isinstance(n, Function)]
    named: dict[str, list[_Placed]] = {}
    for source, function in functions:
        named.setdefault(function.name, []).append((source, function))
    taking = {id(f): [n for n in _own(f) if _takes(n) and _hinges(s, f, n)] for s, f in functions}
    always = {id(f): [n for n in _own(f) if _takes(n)] for _, f in functions}
    for _ in range(_DEEP):  # helpers that call such helpers
        for source, function in functions:
            for call in (n for n in _own(function) if isinstance(n, ast.Call)):
                inner = [f for _, f in named.get(called(call), ()) if f is not function]
                some = any(taking[id(f)] for f in inner)
                every = any(always[id(f)] for f in inner)
                if (some or (every and _hinges(source, function, call))) and call not in taking[id(function)]:
                    taking[id(function)].append(call)
                if every and call not in always[id(function)]:
                    always[id(function)].append(call)
    return taking, named


def _does(name: str, named: Mapping[str, list[_Placed]], deep: int) -> str:
    """Whether a function of the user's takes a step, or else goes back from a loss."""
    found = set[str]()
    for each in (called(n) for _, f in named.get(name, ()) for n in _own(f) if isinstance(n, ast.Call)):
        found.add(each if each in (_BACK, _STEP) or not deep else _does(each, named, deep - 1))
    return _STEP if _STEP in found else _BACK if _BACK in found else ""


def _own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    return (n for part in function.body for n in within(part))


def _takes(node: ast.AST) -> bool:
    """``p.grad = None``."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    none = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
    return none and any(isinstance(each, ast.Attribute) and each.attr == "grad" for each in targets)


def _hinges(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef, node: ast.AST) -> bool:
    """Whether a branch decides on it whose answer is not that of the loops around: ``if epoch < 1``."""
    above = [*source.above(node)]
    loops = [n for n in above if isinstance(n, (ast.For, ast.comprehension))]
    turned = {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    ends = [n for n in _own(function) if isinstance(n, ast.If) and n.lineno < getattr(node, "lineno", 0)]
    ends = [n for n in ends if any(isinstance(part, ast.Return) for part in ast.walk(n))]
    tests = [n.test for n in above if isinstance(n, (ast.If, ast.IfExp, ast.While))] + [n.test for n in ends]
    return any(isinstance(n, ast.Name) and n.id not in turned for test in tests for n in ast.walk(test))


def _between(every: list[ast.AST], taking: list[ast.AST], does: Mapping[str, str]) -> bool:
    """Whether such a line stands behind a backward pass and ahead of the step that reads its gradients."""
    order: list[tuple[int, int, str]] = []
    for node in every:
        at = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        if any(node is each for each in taking):
            order.append((*at, _TAKEN))
        elif isinstance(node, ast.Call) and (name := called(node)):
            what = name if name in (_BACK, _STEP) else does.get(name, "")
            order += [(*at, what)] if what else []
    last, taken = "", False
    for _, _, what in sorted(order):
        if what == _TAKEN:
            taken = taken or last == _BACK
        elif what == _STEP and taken:
            return True
        else:
            last, taken = what, False
    return False
