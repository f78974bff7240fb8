"""A name that a line gives a result, or leaves what it has: ``best = loss if loss < low else best``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import TypeGuard

from paramgraph_kit.doctor.explain.syntax import LOOPS, elements_of, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.kept_choices import is_choice

_PICKS = ("max", "min")
_EQUAL = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def may_be(value: ast.expr) -> Iterator[ast.expr]:
    """What an expression is, as it is: itself, either side of a choice, or what the largest is picked from."""
    if isinstance(value, ast.IfExp):
        yield from (*may_be(value.body), *may_be(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (part for each in value.values for part in may_be(each))
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _PICKS:
        yield from (part for each in value.args for part in may_be(each))
    else:
        yield value


def taken_by(node: ast.Assign) -> list[ast.expr]:
    """What else than what it has a line may give its name, where it may leave that, too; none for another line.

    Who asks only whether there is something has that from the first time on: a default.
    """
    target, value = ast.unparse(node.targets[0]), node.value
    parts = [*may_be(value)]
    others = [each for each in parts if ast.unparse(each) != target]
    asks = value.test if isinstance(value, ast.IfExp) else value.values[0] if isinstance(value, ast.BoolOp) else None
    is_default = asks is not None and ast.unparse(asks) in (target, f"{target} is None", f"{target} is not None")
    return others if len(parts) > len(others) and not is_default else []


@lru_cache(256)
def kept_in_some_rounds(code: CodeType, line: int) -> tuple[tuple[ast.Assign, ast.expr, ast.expr], ...]:
    """Lines that keep the result of what runs at a line in those rounds of its loop alone that a test is for.

    Each with what it gives it to, and the result there. A plain name of one thing is looked at elsewhere.
    """
    nodes, found = [*nodes_of(code)], list[tuple[ast.Assign, ast.expr, ast.expr]]()
    assigns = [n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1]
    running = {ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call) and _spans(n, line)}
    made = [n for n in assigns if isinstance(n.value, ast.Call) and ast.unparse(n.value.func) in running]
    results = {each.id for n in made for each in elements_of(n.targets[0]) if isinstance(each, ast.Name)}
    rounds = [n for n in nodes if isinstance(n, LOOPS) and _spans(n, line)]
    tests = [n for each in rounds for n in ast.walk(each) if isinstance(n, ast.If) and n.lineno > line]
    counted = {n.id for each in rounds if isinstance(each, ast.For) for n in elements_of(each.target) if _is_name(n)}
    for test in (n for n in tests if is_choice(n.test, assigns, n, code) or _picks(n.test, counted)):
        for node in (n for part in test.body for n in ast.walk(part) if isinstance(n, ast.Assign)):
            for target, value in pairs_of(node):
                parts = [*_parts(value)]
                plain = isinstance(target, ast.Name) and target is node.targets[0]
                is_path = isinstance(target, (ast.Name, ast.Attribute)) and not plain
                held = [part for part in parts if isinstance(part, ast.Name) and part.id in results]
                if is_path and held:
                    found.append((node, target, held[0]))
    return tuple(found)


def pairs_of(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """What a line gives, and to what: each of several by itself."""
    (target, *others), value = node.targets, node.value
    rows = isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List))
    if not others and rows and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        return [*zip(target.elts, value.elts, strict=True)]  # type: ignore[attr-defined]
    return [(each, value) for each in node.targets]


def is_read_elsewhere(code: CodeType, node: ast.Assign, path: ast.expr) -> bool:
    """Whether a line of the file reads an attribute, and not in the branch that has just set it."""
    tree, nodes = tree_of(code.co_filename), [*nodes_of(code)]
    branches = [n for n in nodes if isinstance(n, ast.If) and any(each is node for each in ast.walk(n))]
    inside = {id(n) for each in branches[-1:] for part in each.body for n in ast.walk(part)}
    reads = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute)) if tree is not None else ()
    lines = {
        (n.lineno, n.col_offset) for each in nodes if id(each) in inside for n in [each] if isinstance(n, ast.expr)
    }
    return any(
        isinstance(n.ctx, ast.Load) and n.attr == last_name(path) and (n.lineno, n.col_offset) not in lines
        for n in reads
    )


def _is_name(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _picks(test: ast.expr, names: set[str]) -> bool:
    """Whether a test is for some rounds by what each has for itself: ``if step == 10:``."""
    compared = [n for n in ast.walk(test) if isinstance(n, ast.Compare) and all(isinstance(op, _EQUAL) for op in n.ops)]
    return any(_is_name(part) and part.id in names for n in compared for part in (n.left, *n.comparators))


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.Dict):
        yield from value.values
    elif isinstance(value, (ast.Tuple, ast.List)):
        yield from value.elts
    else:
        yield value


def _spans(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
