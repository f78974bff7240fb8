"""Numbers of the host's that a line computes with before it reads: ``int((mean + alpha * width).argmax())``.

What is read there comes of them, and not they of it: that a graph keeps them is another problem of the line.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.trace.model import Failure

_CODES = ("scalar-frozen", "host-random")
_READS = ("item", "tolist", "cpu", "numpy")
_NUMBERS = ("int", "float", "bool")
_OPERATIONS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
}


def is_before_its_read(failure: Failure, given: Collection[str]) -> bool:
    """Whether a number is frozen by an operation on what a line reads, and by none behind that.

    ``given`` are names that have what the function has read: of these a number follows.
    """
    tree, found = _operations_of(failure)
    reads = [*_reads(tree)] if tree is not None else []
    inside = {n for read in reads for inner in _inner(read) for n in ast.walk(inner)}
    if not found or any(n not in inside for n in found):
        return False
    known = {n for read in reads for n in ast.walk(read)} - inside
    return not any(_follows(n, known, given) for n in found)


def is_of_a_reading(failure: Failure, given: Collection[str]) -> bool:
    """Whether a number of an operation is what another line has read, ``self.best += score``: ``given`` has its name.

    That takes a tensor as well.
    """
    _, found = _operations_of(failure)
    return bool(found) and all(any(_is_of(side, given) for side in _sides(n)) for n in found)


def _operations_of(failure: Failure) -> tuple[ast.Module | None, list[ast.AST]]:
    """A line's syntax, and what of it may be the operation that is told of."""
    at, name = failure.frame, failure.message.partition(" got ")[0]
    if failure.code not in _CODES or at is None or name == failure.message:
        return None, []
    text = at.text.strip()
    try:
        tree = ast.parse(f"{text} pass" if text.endswith(":") else text)
    except SyntaxError:  # a part of a statement
        return None, []
    return tree, [n for n in ast.walk(tree) if _is_operation(n, name)]


def _sides(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [node.value] if isinstance(node, ast.AugAssign) else []


def _is_of(side: ast.expr, given: Collection[str]) -> bool:
    """Whether an expression has such names, and numbers, alone."""
    parts = [*ast.walk(side)]
    names = {n.id for n in parts if isinstance(n, ast.Name)}
    return bool(names) and names <= {*given} and not any(isinstance(n, (ast.Call, ast.Attribute)) for n in parts)


def _reads(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute) and node.func.attr in _READS
        number = isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and len(node.args) == 1
        if method or number:
            yield node


def _inner(read: ast.Call) -> list[ast.expr]:
    return [read.func.value] if isinstance(read.func, ast.Attribute) else read.args


def _is_operation(node: ast.AST, name: str) -> bool:
    """Whether a node computes by an operation with this name: ``mul`` of ``a * b``, and of ``a.mul(b)``."""
    if isinstance(node, ast.BinOp):
        sign = _OPERATIONS.get(type(node.op), "")
        return name == sign or (sign == "sub" and name == "rsub") or (sign == "div" and name in ("reciprocal", "mul"))
    if isinstance(node, ast.AugAssign):
        return name.removesuffix("_") == _OPERATIONS.get(type(node.op), "")
    return isinstance(node, ast.Call) and last_name(node.func).removesuffix("_") == name.removesuffix("_")


def _follows(node: ast.AST, reads: Collection[ast.AST], given: Collection[str]) -> bool:
    """Whether an operation is given what is read in its own line, or a name for what another line has read."""
    below = [*ast.walk(node)]
    return any(n in reads or (isinstance(n, ast.Name) and n.id in given) for n in below)
