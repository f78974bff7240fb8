"""A line that a rewrite puts outside of the function is told with where it goes: without a diff nothing says it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from paramgraph_kit.rewrite.source.edits import Function, Source, first_line

_MARK = re.compile(r"  # once, (?:before|in) `\w+`$")


def once_before(source: Source, statement: ast.stmt, line: int) -> str:
    """Where a new line behind ``line`` others of the file goes, unless it stays in the statement's function."""
    function = source.function_of(statement)
    if function is None or first_line(function) - 1 < line <= (function.end_lineno or function.lineno):
        return ""
    around = [n for n in ast.walk(source.tree) if isinstance(n, Function) and n.lineno <= line < (n.end_lineno or 0)]
    if around:
        return f"in `{around[-1].name}`"
    return f"before `{function.name}`" if line < function.lineno else ""


def marked(lines: Sequence[str], where: str) -> list[str]:
    """New lines with where they go, at the end of each."""
    return [f"{line}  # once, {where}" for line in lines] if where else [*lines]


def unmarked(line: str) -> str:
    """The same line as a diff has it."""
    return _MARK.sub("", line)
