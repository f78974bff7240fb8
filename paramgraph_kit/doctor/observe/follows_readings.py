"""Lines that a call runs or not by what it has read back: ``if i in used:``, of numbers that ``.item()`` has filled.

What only a first call runs may be made once. It is not where names of that call have decided, which readings gave it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Set
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import LOOPS, nodes_of

_GATHERS = ("append", "add", "extend", "update", "insert", "remove", "discard", "setdefault")
_LEAVES = (ast.Continue, ast.Break)


def follows(code: CodeType, line: int, asked: Collection[int]) -> bool:
    """Whether tests around a line, or ahead of it in its loop, read names that come from lines which are told."""
    nodes = [*nodes_of(code)]
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # and what these hold may last
    known = _from_readings(nodes, asked, {*code.co_varnames, *code.co_cellvars} - {*given})
    return any(_reads(test) & known for test in _tests(nodes, line))


def _tests(nodes: list[ast.AST], line: int) -> Iterator[ast.expr]:
    loops = [n for n in nodes if isinstance(n, LOOPS) and _within(n, line)]
    for node in nodes:
        if isinstance(node, (ast.If, ast.While)):
            leaves = isinstance(node.body[-1], _LEAVES) and (node.end_lineno or line) < line
            asks = isinstance(node.test, ast.BoolOp) and node.lineno <= line < node.body[0].lineno  # as far as it comes
            if asks or _within(node, line) or (leaves and any(_within(each, node.lineno) for each in loops)):
                yield node.test
        elif isinstance(node, ast.For) and _within(node, line):
            yield node.iter


def _within(node: ast.If | ast.For | ast.AsyncFor | ast.While, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.end_lineno or 0)


def _from_readings(nodes: list[ast.AST], asked: Collection[int], own: Set[str]) -> Set[str]:
    """Those of a call's own names that get what told lines read, or that such names have decided."""
    found, counted = set[str](), -1
    while len(found) != counted:
        counted = len(found)
        for node in nodes:
            value = _decides(node)
            lines = range(value.lineno, (value.end_lineno or value.lineno) + 1) if value is not None else ()
            if value is not None and (_reads(value) & found or any(each in asked for each in lines)):
                found |= own & {name for part in ast.walk(node) for name in _gets(part)}
    return found


def _decides(node: ast.AST) -> ast.expr | None:
    """What a statement computes with, or goes by."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        return node.value
    if isinstance(node, ast.Expr):
        return node.value
    return node.test if isinstance(node, (ast.If, ast.While)) else node.iter if isinstance(node, ast.For) else None


def _gets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GATHERS:
        yield from [node.func.value.id] if isinstance(node.func.value, ast.Name) else []
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
        yield node.value.id


def _reads(node: ast.AST) -> Set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
