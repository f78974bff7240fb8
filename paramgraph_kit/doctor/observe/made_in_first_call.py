"""What a step makes in its first call alone and keeps: captured in that call, each replay would make it anew."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import here, last_name, nodes_of, pairs_of
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.source_lines import frame_at, path_of

_NOTE = (
    "the first call makes `{target}` {of}, at {at}: run it once before it is captured, as each replay of a graph that "
    "was captured in that call would make it anew"
)
_FORMS = frozenset(("shape", "device", "dtype", "size", "dim", "ndim", "numel", "stride", "type", "is_floating_point"))
_LIKE = ("zeros_like", "ones_like", "empty_like", "full_like", "len", "isinstance", "new_zeros", "new_ones", "new_full")
_DRAWS = frozenset("rand randn randint randperm rand_like randn_like randint_like multinomial bernoulli normal".split())  # noqa: SIM905
_DRAWN = frozenset(("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "trunc_normal_"))
_DEEP = 3  # names of which names are made


def notes(codes: Iterable[CodeType], given: Callable[[], Mapping[str, Any]]) -> Iterator[str]:
    """Those of which another call would have made another one, or which later calls write where they are.

    ``given``: what the step is given, by the names of its arguments.
    """
    codes = sorted(codes, key=lambda code: (code.co_filename, code.co_firstlineno))
    functions = {code: [*nodes_of(code)] for code in codes}
    if not any(_begun(node) for nodes in functions.values() for node in nodes):
        return
    written = [path for nodes in functions.values() for node in nodes for path in _written(node)]
    moving = {name for name, value in given().items() if is_a(value, torch.Tensor)}
    told = set[str]()
    for code, nodes in functions.items():
        for node in nodes:
            target, body = _begun(node) or ("", [])
            if not target or target in told or not _lives_on(target, code):
                continue
            inside = [n for part in body for n in here(part)]
            values = [value for n in inside for to, value in pairs_of(n) if ast.unparse(to) == target]
            own = [path for n in inside for path in _written(n)]
            elsewhere = [path for path in written if path not in own]
            if values and (of := _why(values[0], nodes, moving, elsewhere, target)):
                told.add(target)
                at = frame_at(code, values[0].lineno).label()
                yield _NOTE.format(target=target, of=of, at=at)


def _begun(node: ast.AST) -> tuple[str, list[ast.stmt]] | None:
    """What a branch asks for that may not be there yet, and what it does then."""
    if not isinstance(node, ast.If):
        return None
    test, body, other = node.test, node.body, node.orelse
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, body, other = test.operand, other, body
        if isinstance(test, ast.Call) and last_name(test.func) == "hasattr" and len(test.args) == 2:
            name = ast.unparse(test.args[1]).strip("'\"")
            return f"{ast.unparse(test.args[0])}.{name}", other
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, right = test.left, test.comparators[0]
    is_none = isinstance(right, ast.Constant) and right.value is None
    if isinstance(test.ops[0], ast.Is | ast.IsNot) and is_none:
        return ast.unparse(left), body if isinstance(test.ops[0], ast.Is) else other
    if isinstance(test.ops[0], ast.In | ast.NotIn):
        return f"{ast.unparse(right)}[{ast.unparse(left)}]", body if isinstance(test.ops[0], ast.NotIn) else other
    return None


def _lives_on(target: str, code: CodeType) -> bool:
    """Whether something outlives the call: what an object has, or a name of the module's."""
    root = target.partition("[")[0].partition(".")[0]
    return root == next(iter(code.co_varnames), "") == "self" or root not in code.co_varnames


def _written(node: ast.AST) -> Iterator[tuple[str, bool, int]]:
    """Paths that a statement gives another value, whether it writes in place, and its line."""
    line = getattr(node, "lineno", 0)
    for to, _ in pairs_of(node):
        for each in getattr(to, "elts", [to]):
            yield ast.unparse(each), False, line
            if isinstance(each, ast.Subscript):
                yield ast.unparse(each.value), True, line
    if isinstance(node, ast.AugAssign):
        yield ast.unparse(node.target), True, line
        if isinstance(node.target, ast.Subscript):
            yield ast.unparse(node.target.value), True, line
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.endswith("_") and not name.startswith("_") and name not in ("requires_grad_", "detach_"):
            value = node.func.value
            yield ast.unparse(value), True, line
            if isinstance(value, ast.Subscript):
                yield ast.unparse(value.value), True, line


def _why(
    value: ast.expr,
    nodes: list[ast.AST],
    moving: Collection[str],
    written: list[tuple[str, bool, int]],
    target: str,
) -> str:
    """Why another call would make another one; "" where none would."""
    if any(path == target and not in_place for path, in_place, _ in written):
        return ""  # another one in each call, which is a problem of its own
    read, calls = set[str](), set[str]()
    _gather(value, nodes, read, calls, _DEEP)
    if calls & (_DRAWS | _DRAWN):
        return "of random numbers"
    paths = {path for path, _, _ in written}
    if moves := sorted(path for path in read - {target} if path in paths and "." in path):
        return f"of `{moves[0]}`, which later calls change"
    if gets := sorted(read & {*moving}):
        return f"of `{gets[0]}`, which later calls are given others of"
    if any(path == target and in_place for path, in_place, _ in written):
        return "and others write it where it is"
    return ""


def _gather(value: ast.AST, nodes: list[ast.AST], read: set[str], calls: set[str], deep: int) -> None:
    """Paths whose values an expression computes with, and what it calls, also by names of the function's own."""
    if isinstance(value, ast.Attribute) and value.attr in _FORMS:
        return
    if isinstance(value, ast.Call):
        calls.add(last_name(value.func))
        if last_name(value.func) in (*_LIKE, *_FORMS):
            return
        parts = [value.func.value] if isinstance(value.func, ast.Attribute) else []
        for each in (*parts, *value.args, *(keyword.value for keyword in value.keywords)):
            _gather(each, nodes, read, calls, deep)
        return
    if path := path_of(value):
        read.add(path)
        made = [given for n in nodes for to, given in pairs_of(n) if path_of(to) == path] if "." not in path else []
        for each in made if deep else ():
            _gather(each, nodes, read, calls, deep - 1)
        return
    for child in ast.iter_child_nodes(value):
        _gather(child, nodes, read, calls, deep)
