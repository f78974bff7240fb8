"""The syntax tree of a function that ran, from the source that Python has of it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import cache
from types import CodeType


@cache
def _tree(file: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text, file)
    except (SyntaxError, ValueError):
        return None


def nodes_of(code: CodeType) -> Iterator[ast.AST]:
    """The syntax of a function, as far as its source can be read."""
    tree = _tree(code.co_filename, "".join(linecache.getlines(code.co_filename)))
    if tree is None:
        return
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    for node in ast.walk(tree):
        if code.co_firstlineno <= getattr(node, "lineno", -1) <= last:
            yield node
