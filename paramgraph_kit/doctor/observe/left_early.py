"""What leaves a function, or a part of it, before one of its lines: read from its syntax tree."""

from __future__ import annotations

import ast
from itertools import takewhile
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.places import Position

_CHOICES = (ast.If, ast.IfExp, ast.While, ast.For, ast.Match, ast.Try, ast.comprehension)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WITHIN = (ast.If, ast.IfExp, ast.While, ast.For, ast.Match, ast.Try, ast.BoolOp, *_COMPREHENSIONS)


def has_branch(code: CodeType) -> bool:
    """Whether a function decides anything, as far as it can be read; one without source may."""
    nodes = list(nodes_of(code))
    return not nodes or any(isinstance(node, _CHOICES) for node in nodes)


def runs_always(code: CodeType, at: Position) -> bool:
    """Whether each call of a function comes to a position, as far as it can be read; without source it may not."""
    nodes = list(nodes_of(code))
    around = [n for n in nodes if isinstance(n, _WITHIN)]
    left = [n for n in nodes if isinstance(n, (ast.Return, ast.Raise)) and (n.end_lineno or n.lineno) < at[0]]
    return bool(nodes) and not left and not any(_holds(node, at) for node in around)


def _holds(node: ast.expr | ast.stmt, at: Position) -> bool:
    return (node.lineno, node.col_offset) <= at <= (node.end_lineno or 0, node.end_col_offset or 0)


def without_rounds_beside(code: CodeType, near: list[Position], ran: list[Position]) -> list[Position]:
    """Positions without those in loops that do not hold what ran: what is behind a loop runs however long that was."""
    loops = [n for n in nodes_of(code) if isinstance(n, (ast.For, ast.While))]
    loops = [n for n in loops if not any(isinstance(part, (ast.Return, ast.Raise)) for part in ast.walk(n))]
    beside = [n for n in loops if not any(_holds(n, at) for at in ran)]
    return [at for at in near if not any(_holds(n, at) for n in beside)]


def rounds_on(code: CodeType, before: Position, other: Position, row: list[list[Position]]) -> int:
    """How many of a row go on in a loop that holds what was before, and not where the other call is by then."""
    loops = [n for n in nodes_of(code) if isinstance(n, (ast.For, ast.While)) and _holds(n, before)]
    loops = [n for n in loops if not _holds(n, other)]
    within = (any(_holds(n, at) for n in loops for at in each) for each in row)
    return sum(1 for _ in takewhile(bool, within))


def left_early(code: CodeType, line: int, past: int = 0) -> int | None:
    """The test of the last ``if c: return`` before a line, whose body does nothing on the device.

    The other call was at the line ``past``: what leaves the function before that, in no loop, it has not taken.
    """
    leaving, nodes = (ast.Return, ast.Raise, ast.Break, ast.Continue), list(nodes_of(code))
    in_rounds = {part for node in nodes if isinstance(node, (ast.For, ast.While)) for part in ast.walk(node)}
    ifs = [node for node in nodes if isinstance(node, ast.If) and isinstance(node.body[-1], leaving)]
    ifs = [node for node in ifs if node in in_rounds or past <= (node.end_lineno or 0)]
    if past:  # what does something in there the other call has not done
        been = [node for node in ifs if node.lineno < past <= (node.end_lineno or 0)]
        ifs = been or [node for node in ifs if not any(map(_computes, node.body))] or ifs
    return max((node.lineno for node in ifs if node.lineno < line), default=None)


def _computes(node: ast.AST) -> bool:
    return any(isinstance(part, (ast.Call, ast.BinOp)) for part in ast.walk(node))
