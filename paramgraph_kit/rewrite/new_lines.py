"""New lines that are told where no diff shows them: where one goes, and what it must not ask for."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence

from paramgraph_kit.rewrite.source.ahead_of import is_sized
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


def picks_by_masks(lines: Sequence[str]) -> int:
    """How often some lines pick by a comparison, ``x[i < n]``, whose result has no size that the host knows."""
    try:
        tree = ast.parse("\n".join(lines).replace("return ", "", 1))
    except SyntaxError:  # a part of a statement
        return 0
    stored = (n for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load))
    return sum(isinstance(part, ast.Compare) for n in stored for part in _parts(n.slice))


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def chooses_sized(lines: Sequence[str]) -> bool:
    """Whether lines choose what the device counts, ``torch.where(c, mask.nonzero(), old)``: none is of its size."""
    try:
        nodes = [*ast.walk(ast.parse(textwrap.dedent("\n".join(lines))))]
    except SyntaxError:  # a part of a statement
        return False
    return any(isinstance(n, ast.Call) and len(n.args) == 3 and any(map(is_sized, n.args[1:])) for n in nodes)
