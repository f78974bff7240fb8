"""Masks that are empty once a loop has ended: what is written by them changes nothing in the rounds after that.

``if not active.any(): break`` with ``depth[active] += step`` in the round, and ``active[active.clone()] = ~hit``, or
``active = active & ~hit``: a mask that only loses what it has stays empty.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from paramgraph_kit.rewrite.loops.early import bound_of
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.masked import mask_of_put
from paramgraph_kit.rewrite.source.place import Place, called, integer


def emptied(place: Place, loop: ast.For | ast.While, breaks: Sequence[ast.stmt]) -> set[str]:
    """Names of masks that are empty once a loop has ended, and stay so."""
    ends = [_asked(each.test) for each in breaks if isinstance(each, ast.If)]
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        both = isinstance(loop.test, ast.BoolOp) and isinstance(loop.test.op, ast.And)
        parts = loop.test.values if both and isinstance(loop.test, ast.BoolOp) else [loop.test]
        ends += [_asked_for(part) for part in parts if not bound_of(place, part)]
    found = set(ends[0]) if len(ends) == 1 else set[str]()
    return {name for name in found if all(_only_less(place, part, name) for part in _stores(loop, name))}


def _asked(test: ast.expr) -> Iterator[str]:
    """``active`` of ``not active.any()``, ``active.sum() == 0`` and ``not torch.any(active)``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Lt, ast.LtE)):
        none = integer(test.comparators[0]) == (1 if isinstance(test.ops[0], ast.Lt) else 0)
        yield from _of_all(test.left, "sum") if none else ()
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _of_all(test.operand, "any")


def _asked_for(test: ast.expr) -> Iterator[str]:
    """``active`` of ``active.any()`` and ``active.sum() > 0``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Gt):
        yield from _of_all(test.left, "sum") if integer(test.comparators[0]) == 0 else ()
    else:
        yield from _of_all(test, "any")


def _of_all(node: ast.expr, way: str) -> Iterator[str]:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in ("item", "bool"):
        node = node.func.value
    if (
        not isinstance(node, ast.Call)
        or called(node) != way
        or node.keywords
        or not isinstance(node.func, ast.Attribute)
    ):
        return
    of_torch = path_of(node.func.value) == "torch"
    given = node.args[0] if of_torch and len(node.args) == 1 else node.func.value
    if isinstance(given, ast.Name) and len(node.args) == of_torch:
        yield given.id


def _stores(loop: ast.For | ast.While, name: str) -> Iterator[ast.stmt]:
    """The statements of a loop that give a mask, or some of it, another value."""
    for part in (n for each in loop.body for n in within(each)):
        targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
        if not isinstance(part, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)):
            calls = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
            if calls and name in {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}:
                yield part  # type: ignore[misc]
            continue
        if any(isinstance(n, ast.Name) and n.id == name for t in targets if t is not None for n in _written(t)):
            yield part  # type: ignore[misc]


def _written(target: ast.AST) -> Iterator[ast.AST]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _written(each)
    elif isinstance(target, ast.Subscript):
        yield from _written(target.value)
    else:
        yield target


def _only_less(place: Place, part: ast.stmt, name: str) -> bool:
    """Whether a statement takes something out of a mask, and puts nothing there."""
    if isinstance(part, ast.AugAssign):
        return isinstance(part.target, ast.Name) and isinstance(part.op, (ast.BitAnd, ast.Mult))
    if not isinstance(part, ast.Assign) or len(part.targets) != 1:
        return False
    if isinstance(part.targets[0], ast.Subscript):
        given = part.value.value if isinstance(part.value, ast.Constant) else None
        return mask_of_put(part) == name or given is False
    value = part.value
    both = isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitAnd)
    return both and name in (place.text(value.left), place.text(value.right))  # type: ignore[attr-defined]
