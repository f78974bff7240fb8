"""Lines of a warm-up: what they do to gradients is over when the capture of the step begins, further down."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, every, here, last_name, spans, tree_of

_CAPTURES = ("graph", "capture", "capture_begin", "make_graphed_callables")


def ahead_of_captures(file: str, line: int, function: Callable[..., Any]) -> bool:
    """Whether a line runs only ahead of the first capture of a function, by the lines around both.

    ``for _ in range(3): optimizer.zero_grad(set_to_none=True); step(x)``, and ``with torch.cuda.graph(g): step(x)``.
    """
    tree, name = tree_of(file), getattr(function, "__name__", "")
    if tree is None or not name:
        return False
    functions = [n for n in every(tree) if isinstance(n, FUNCTIONS[:2])]
    around = [n for n in functions if spans(n, line)]
    body = max(around, key=lambda n: n.lineno).body if around else tree.body
    nodes = [n for statement in body for n in here(statement, FUNCTIONS)]
    helpers = {n.name for n in functions if any(map(_captures, ast.walk(n)))}
    begun = [n for n in nodes if _captures(n) or (isinstance(n, ast.Call) and last_name(n.func) in helpers)]
    first = min((getattr(n, "lineno", 0) for n in begun), default=0)
    loops = [n for n in nodes if isinstance(n, LOOPS) and spans(n, line)]
    if first <= line or any(spans(loop, first) for loop in loops):
        return False
    replays = [n.lineno for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "replay"]
    named = [n.lineno for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and last_name(n) == name]
    return not any(at < first for at in replays) and any(at >= first for at in named)


def _captures(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _CAPTURES
