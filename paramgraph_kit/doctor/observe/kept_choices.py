"""Tests that come out otherwise from call to call: what a branch behind one keeps is the result of some calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import LOOPS, last_name, nodes_of, tree_of

_ORDERS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_READS = ("item", "tolist", "any", "all", "equal", "allclose")  # of values, which are others in each call
_ABOUT = ("shape", "size(", "ndim", "dtype", "training", "requires_grad")
_MOST = 3  # functions that call each other


def is_choice(test: ast.expr, assigns: Sequence[ast.Assign], at: ast.AST, code: CodeType, most: int = _MOST) -> bool:
    """Whether a test asks for what is another in each call, and not what shape something has, or whether it is there.

    Args:
        test: what decides.
        assigns: the assignments of its function.
        at: the statement that it belongs to, whose loop may give its names.
        code: of its function.
        most: how many functions are followed.
    """
    lines = [n.value for n in assigns if isinstance(test, ast.Name) and ast.unparse(n.targets[0]) == test.id]
    if lines:
        return all(is_choice(each, [], at, code, most) for each in lines)
    text = ast.unparse(test)
    if any(f".{word}" in text for word in _ABOUT) or "len(" in text:
        return False
    nodes = [*ast.walk(test)]
    ordered = any(isinstance(op, _ORDERS) for n in nodes if isinstance(n, ast.Compare) for op in n.ops)
    if ordered or any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in nodes):
        return True
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    if any(isinstance(n.func, ast.Attribute) and n.func.attr in _READS for n in calls):
        return True
    return _is_given_by_a_loop(test, at, code) or (most > 0 and any(_answers(n, code, most - 1) for n in calls))


def _is_given_by_a_loop(test: ast.expr, at: ast.AST, code: CodeType) -> bool:
    """Whether a test is a flag that each round has for itself: ``for x, is_last in batches: if is_last:``."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if not isinstance(test, ast.Name):
        return False
    loops = [n for n in nodes_of(code) if isinstance(n, ast.For) and any(part is at for part in ast.walk(n))]
    return any(isinstance(n, ast.Name) and n.id == test.id for each in loops for n in ast.walk(each.target))


def _answers(call: ast.Call, code: CodeType, most: int) -> bool:
    """Whether the one function of the file that a call may mean answers by such a test."""
    found = [*_functions(code, last_name(call.func))] if isinstance(call.func, (ast.Name, ast.Attribute)) else []
    if len(found) != 1:
        return False
    inside = [*ast.walk(found[0])]
    if any(isinstance(n, LOOPS) for n in inside):
        return False
    assigns = [n for n in inside if isinstance(n, ast.Assign)]
    returned = [n.value for n in inside if isinstance(n, ast.Return) and n.value is not None]
    return any(is_choice(each, assigns, found[0], code, most) for each in returned)


def _functions(code: CodeType, name: str) -> Iterable[ast.FunctionDef]:
    tree = tree_of(code.co_filename)
    nodes = ast.walk(tree) if tree is not None else ()
    return (n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == name)
