"""Lines that make what a capture beside them reads, as the input of each bucket: its replays have that one."""

from __future__ import annotations

import ast
from functools import lru_cache

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, innermost, last_name, tree_of
from paramgraph_kit.doctor.observe.own_regions import all_blocks


@lru_cache(maxsize=64)
def is_made_with_capture(function: ast.AST, statement: ast.AST) -> bool:
    """Whether a line of a function is in a capture, or next to one: it makes what is captured there."""
    blocks = [n for n in ast.walk(function) if isinstance(n, ast.With)]
    captures = {id(n) for block in blocks if any(map(_is_capture, block.items)) for n in ast.walk(block)}
    beside = (part for each in all_blocks(function) if statement in each for part in each)
    held = (n for part in beside if isinstance(part, ast.With) for n in ast.walk(part))
    return id(statement) in captures or any(id(n) in captures for n in held)


def is_made_with_its_capture(file: str, statement: ast.AST | None) -> bool:
    """The same, of a line that is known by its file alone."""
    own = innermost(tree_of(file), getattr(statement, "lineno", 0), FUNCTIONS[:2])
    return own is not None and is_made_with_capture(own, statement)


def _is_capture(item: ast.withitem) -> bool:
    return isinstance(item.context_expr, ast.Call) and last_name(item.context_expr.func) == "graph"
