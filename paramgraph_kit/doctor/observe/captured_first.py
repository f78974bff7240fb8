"""Tests for a graph that is not there yet: what stands behind them captures it in the first call, and never again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.loop_names import calls_in, functions_in
from paramgraph_kit.doctor.observe.set_between import CAPTURES


def captures_when_first(node: ast.If, file: str) -> bool:
    """Whether a branch captures, and gives what its test asks for: ``if self.graph is None:``, ``if not self.ready:``.

    A table has a graph for each key, and a later one may take the inputs of the first with it: none is meant.
    """
    asked = {last_name(each) for each in _asked(node.test)} - {""}
    calls = frozenset().union(*map(calls_in, node.body)) if asked else frozenset[str]()
    makers = [f for f in functions_in(file) if f.name in calls and not calls_in(f).isdisjoint(CAPTURES)]
    if calls.isdisjoint(CAPTURES) and not makers:
        return False
    stored = (n for part in (*node.body, *makers) for n in ast.walk(part) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(isinstance(n.ctx, ast.Store) and last_name(n) in asked for n in stored)


def _asked(test: ast.expr) -> Iterator[ast.expr]:
    """The attributes that a test finds missing, each of them enough for it."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        for part in test.values:
            yield from _asked(part)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from [test.operand] if isinstance(test.operand, ast.Attribute) else []
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Is, ast.Eq)):
        is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        yield from [test.left] if is_none and isinstance(test.left, ast.Attribute) else []
