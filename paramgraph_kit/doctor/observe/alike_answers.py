"""Tests that have one answer for all that lines of the file set: ``if self.p > 0`` of ``0.2 * (1 - epoch / epochs)``.

Known are the numbers of loops, ``for epoch in range(epochs)``, that are given to the function which sets the value.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, children, every, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_values import Use

_ROUNDS = (1, 2, 3, 4, 7, 10, 50, 1000)
_FINE = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.expr_context)
_Numbers = dict[str, float]


def answers_alike(use: Use) -> bool:
    """Whether a test that reads a number answers the same for all values that the file gives it."""
    tree = tree_of(use.code.co_filename)
    tests = [n.test for n in nodes_of(use.code) if isinstance(n, (ast.If, ast.IfExp)) and n.lineno == use.node.lineno]
    if tree is None or len(tests) != 1 or not _asks_alone(tests[0], use.text):
        return False
    parents = {child: node for node in every(tree) for child in children(node)}
    name, values = last_name(use.node), list[float]()
    for node in every(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == "setattr":
            return False
        stored = isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        if not stored:
            continue
        given = parents[node]
        found = _values(given.value, given, parents) if isinstance(given, ast.Assign) else None
        if not found:
            return False
        values += found
    asked = ast.Expression(_Named(use.text).visit(ast.parse(ast.unparse(tests[0]), mode="eval").body))
    code = compile(ast.fix_missing_locations(asked), "<test>", "eval")
    return bool(values) and len({bool(eval(code, {}, {"value": each})) for each in values}) == 1


class _Named(ast.NodeTransformer):
    """A name for what a test asks."""

    def __init__(self, path: str) -> None:
        self.path = path

    def visit(self, node: ast.AST) -> Any:
        """The name in place of the path."""
        is_path = isinstance(node, (ast.Attribute, ast.Name)) and ast.unparse(node) == self.path
        return ast.Name("value", ast.Load()) if is_path else self.generic_visit(node)


def _asks_alone(test: ast.expr, path: str) -> bool:
    """``self.p > 0``, or ``self.p``."""
    if ast.unparse(test) == path:
        return True
    compared = [test.left, *test.comparators] if isinstance(test, ast.Compare) else []
    texts = [ast.unparse(each) for each in compared if not isinstance(each, ast.Constant)]
    numbers = [each.value for each in compared if isinstance(each, ast.Constant)]
    return texts == [path] and all(type(each) in (int, float) for each in numbers)


def _values(value: ast.expr, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[float] | None:
    """What an expression of a line gives, for all calls of its function; None where nobody knows."""
    if not all(isinstance(n, _FINE) for n in ast.walk(value)):
        return None
    code = compile(ast.fix_missing_locations(ast.Expression(value)), "<value>", "eval")
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    found = []
    for given in _given(node, names, parents) if names else [{}]:
        if given is None:
            return None
        try:
            found.append(float(eval(code, {}, dict(given))))
        except (ArithmeticError, TypeError, ValueError, NameError):
            return None
    return found if all(map(math.isfinite, found)) else None


def _given(node: ast.AST, names: set[str], parents: dict[ast.AST, ast.AST]) -> Iterator[_Numbers | None]:
    """What calls of a line's function give to its arguments, in loops of several lengths."""
    function: Any = _around(node, FUNCTIONS[:2], parents)
    if function is None:
        yield None
        return
    arguments = [a.arg for a in function.args.args]
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    calls = [n for n in parents if isinstance(n, ast.Call) and last_name(n.func) == function.name]
    if not names <= {*arguments} - stored or not calls:
        yield None
        return
    own = arguments[1:] if arguments[:1] == ["self"] else arguments
    for call in calls:
        given = {**dict(zip(own, call.args, strict=False)), **{k.arg: k.value for k in call.keywords if k.arg}}
        loop: Any = _around(call, (ast.For,), parents)
        bound = _bound(loop)
        for rounds in _ROUNDS if bound is not None else (1,):
            for at in {0, rounds // 2, rounds - 1}:
                known = {} if bound is None else {loop.target.id: float(at), ast.unparse(bound): float(rounds)}
                numbers = {name: _number(given[name], known) for name in names & given.keys()}
                fine = len(numbers) == len(names) and None not in numbers.values()
                yield {name: value for name, value in numbers.items() if value is not None} if fine else None


def _bound(loop: Any) -> ast.expr | None:
    """``epochs`` of ``for epoch in range(epochs)``, where the loop gives it no other value."""
    ranges = loop is not None and isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "range"
    if not ranges or len(loop.iter.args) != 1 or not isinstance(loop.target, ast.Name):
        return None
    bound: ast.expr = loop.iter.args[0]
    inside = {n.id for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Name) and _is_store(n)}
    return bound if isinstance(bound, ast.Name) and not inside & {bound.id, loop.target.id} else None


def _is_store(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _number(node: ast.expr, known: _Numbers) -> float | None:
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, (int, float)) else None
    return known.get(ast.unparse(node))


def _around(node: ast.AST, kinds: Any, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    above = parents.get(node)
    while above is not None and not isinstance(above, kinds):
        above = parents.get(above)
    return above
