"""Whether a function reads a variable behind a line, before that surely is something else."""

from __future__ import annotations

import ast
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, spans

NO_VALUE = ("shape", "size", "dim", "dtype", "device", "numel", "ndim", "is_cuda")


def statement_at(nodes: list[ast.AST], line: int) -> ast.stmt | None:
    """The plain statement at a line."""
    return next((n for n in nodes if isinstance(n, ast.stmt) and not hasattr(n, "body") and spans(n, line)), None)


def is_read_later(nodes: list[ast.AST], name: str, line: int) -> bool:
    """Whether a function reads a name, or an attribute, behind a line, or in the next round, before it is another."""
    now = statement_at(nodes, line)
    first, last = (now.lineno, now.end_lineno or line) if now is not None else (line, line)
    loops = [n for n in nodes if isinstance(n, LOOPS) and spans(n, line)]
    begins = min((n.lineno for n in loops), default=first)
    ends = max((n.end_lineno or last for n in loops), default=last)
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    names: list[Any] = [n for n in nodes if is_path(n, name) and not is_about(n, parents)]

    def order(node: ast.Name | ast.Attribute) -> tuple[int, int, bool]:
        """The statement's own targets, the rest of the loop, its next round, and what is behind it."""
        at = node.lineno
        turn = 0 if first <= at <= last else 1 if last < at <= ends else 2 if begins <= at < first else 3
        return turn, at, isinstance(node.ctx, ast.Store)  # an assignment's value comes before its targets

    later = [n for n in names if n.lineno > last or begins <= n.lineno < first or isinstance(n.ctx, ast.Store)]
    later = [
        n for n in later if n.lineno >= begins and not (isinstance(n.ctx, ast.Store) and _perhaps(n, parents, line))
    ]
    return isinstance(min(later, key=order).ctx, ast.Load) if later else False


def _perhaps(node: ast.AST, parents: dict[ast.AST, ast.AST], line: int) -> bool:
    """Whether something runs in some rounds only."""
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.If, ast.Try, *LOOPS)) and not spans(node, line):
            return True
    return False


def is_path(node: ast.AST, path: str) -> bool:
    """Whether a node is a variable, or an attribute, of that name."""
    kind = ast.Attribute if "." in path else ast.Name
    return isinstance(node, kind) and ast.unparse(node) == path


def is_about(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a variable is only asked whether there is something, or what shape it has."""
    above = parents.get(node)
    if isinstance(above, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in above.ops)
    return isinstance(above, ast.Attribute) and above.attr in NO_VALUE
