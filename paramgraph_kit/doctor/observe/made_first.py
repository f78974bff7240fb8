"""Lines that give an object a tensor in a function which launches no graph: they write it where they stand."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, here, last_name, spans
from paramgraph_kit.doctor.observe.launch_words import ANEW

GROW = ("cat", "concat", "concatenate", "hstack", "vstack")
ROWS = "new rows by index_copy_ at a position on the device that is added to in place, and a mask of the filled"


def launches(functions: Sequence[ast.FunctionDef]) -> bool:
    """Whether the functions around a line launch a graph, or there is none; elsewhere it runs ahead of that anyway."""
    calls = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call)]
    return not functions or any(last_name(n.func) in ("replay", "graph") for n in calls)


def is_made_first(functions: Sequence[ast.FunctionDef], target: ast.expr | None, tree: ast.AST | None) -> str:
    """The beginning of words for a method that alone gives its object what it writes later; "" for any other."""
    own = functions[-1] if functions and functions[-1].args.args else None
    if own is None or not isinstance(target, ast.Attribute) or ast.unparse(target.value) != own.args.args[0].arg:
        return ""
    stores = [n for n in ast.walk(tree or own) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    # `self.pos += 1` writes one that is there already: it makes none.
    added = {id(n.target) for n in ast.walk(tree or own) if isinstance(n, ast.AugAssign)}
    inside = {id(n) for n in ast.walk(own)} | added
    alone = all(id(n) in inside for n in stores if n.attr == target.attr)
    return f"`if hasattr({ast.unparse(target.value)}, {target.attr!r}):" if alone else ""


def runs_ahead_too(line: int, tree: ast.AST | None, captures: str) -> bool:
    """Whether a line's function is also called ahead of what captures: ``s.set_adapter("a"); s.capture()``."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] if tree is not None else []
    around = sorted((f for f in functions if spans(f, line)), key=lambda f: f.lineno)
    if not isinstance(tree, ast.Module) or not around or around[-1].name == captures or launches(around):
        return False
    for body in (tree.body, *(f.body for f in functions)):
        calls = [n for s in body for n in here(s, FUNCTIONS) if isinstance(n, ast.Call)]
        own = [n.lineno for n in calls if last_name(n.func) == around[-1].name]
        if own and any(last_name(n.func) == captures and n.lineno > min(own) for n in calls):
            return True
    return False


def as_large_as_it_gets(target: str, value: ast.expr | None, then: tuple[int, ...], now: tuple[int, ...]) -> str:
    """Words for a tensor that another shape takes the place of, which no copy into it can hold; "" for the same."""
    if then == now or value is None:
        return ""
    if isinstance(value, ast.Call) and last_name(value.func) in GROW:
        return f"{target} as large as it gets, made ahead of the capture: {ROWS}"
    return ANEW  # one that is large enough for all has rows of before in it, which the graph computes with
