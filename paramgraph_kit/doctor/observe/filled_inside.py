"""Lists that a function makes ahead of its capture and fills in it: each capture has its own, and no replay adds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import LOOPS, defines, here, last_name, tree_of

_EMPTY = ("[]", "{}", "list()", "dict()")
_FILL = ("append", "extend", "insert", "update", "setdefault")


def made_for_it(code: CodeType, line: int, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Each such list of a function that only captures, with what makes it: the block reads it, or fills it in a loop.

    What is filled once, in a function that replays as well, is to have an entry for each replay.
    """
    tree = tree_of(code.co_filename)
    function = next((n for n in ast.walk(tree) if defines(n, code)), None) if tree is not None else None
    if not isinstance(function, ast.FunctionDef):
        return
    nodes = [n for s in function.body for n in here(s)]
    if any(isinstance(n, ast.Call) and last_name(n.func) == "replay" for n in nodes):
        return
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for node in (n for n in function.body if isinstance(n, ast.Assign) and n.lineno < line):
        name, made = ast.unparse(node.targets[0]), ast.unparse(node.value)
        if made in _EMPTY and len(node.targets) == 1 and stored.count(name) == 1 and _is_its_own(name, body):
            yield name, made


def _is_its_own(name: str, body: list[ast.stmt]) -> bool:
    inside = [n for s in body for n in ast.walk(s)]
    fills = [n.func.value for n in inside if isinstance(n, ast.Call) and _fills(n.func)]  # type: ignore[attr-defined]
    filled = {id(n) for n in fills if isinstance(n, ast.Name) and n.id == name}
    looped = {id(each) for n in inside if isinstance(n, LOOPS) for each in ast.walk(n)}
    reads = {id(n) for n in inside if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)}
    return bool(filled) and (not filled.isdisjoint(looped) or bool(reads - filled))


def _fills(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in _FILL
