"""Several branches of the device's that leave the same step out: one line tells the optimizer of all of them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.source.edits import names_in, path_of
from paramgraph_kit.rewrite.source.place import Place

_LEAVES = (ast.Return, ast.Continue, ast.Break)


def any_test(place: Place, step: ast.stmt, counted: Callable[[str], str]) -> str:
    """``(a) | (b)`` where another branch of the same block leaves out a step, too; else the test of this one.

    A second ``found_inf = ...`` would take the place of the first, and a loss that is NaN is above no limit.
    """
    node = place.statement
    others = [n for n in place.source.block_of(node) if isinstance(n, ast.If) and n.lineno < step.lineno]
    others = [n for n in others if isinstance(n.body[-1], _LEAVES) and (n is node or _asks_device(place, n.test))]
    tests = [n.test for n in others if isinstance(n, ast.If)]
    texts = [counted(condition_of(place, test)) for test in tests]
    return " | ".join(f"({text})" for text in texts) if texts[1:] else next(iter(texts), "")


def _asks_device(place: Place, test: ast.expr) -> bool:
    calls = [path_of(n.func) for n in ast.walk(test) if isinstance(n, ast.Call)]
    return bool(names_in(test) & {*place.tensors}) or any(each.startswith("torch.") for each in calls)
