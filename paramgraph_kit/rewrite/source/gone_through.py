"""What a loop goes through, name by name: ``experts`` of ``for i, (n, expert) in enumerate(zip(counts, experts))``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import path_of


def gone_through(target: ast.expr, given: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Each name that a loop gives a value, and what has these values as its elements."""
    if isinstance(given, ast.Call) and path_of(given.func) in ("enumerate", "zip"):
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        if path_of(given.func) == "enumerate":
            parts, each = parts[1:2], given.args[:1]
        else:
            each = given.args
        if not any(isinstance(n, ast.Starred) for n in (*parts, *each)):
            for part, one in zip(parts, each, strict=False):
                yield from gone_through(part, one)
    elif isinstance(target, ast.Name):
        yield target, given
