"""Helpers of the user's that bring to the device what the host has, and do nothing else.

``def to_var(x): return Variable(x.to(device))``: where ``to_var(batch)`` stands, what it gives can come from before the
launch, as for a copy that stands there itself.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Function, Source, first_line, is_text, path_of, within
from paramgraph_kit.rewrite.source.place import called

_LINES = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.If, ast.Expr)
_DEPTH = 3

Test = Callable[[Function, Mapping[str, Any]], Callable[[ast.expr], bool]]


def makers(
    sources: Mapping[str, Source], found_in: Collection[Function | None], space: Mapping[str, Any], test: Test
) -> set[str]:
    """The names of helpers that only copy to the device; in each of them, or below, a copy was found.

    ``test`` tells of a function, and what its names mean, which expressions in it are the host's alone.
    """
    functions = {name: node for name, value in space.items() if (node := _written(sources, value)) is not None}
    copying = {name for name, node in functions.items() if node in found_in}
    for _ in range(_DEPTH):
        copying |= {name for name, node in functions.items() if _called_in(node) & copying}
    return {name for name in copying if _only_copies(sources, space[name], test, _DEPTH)}


def types_of_device(space: Mapping[str, Any]) -> set[str]:
    """Names of the device's own types of tensors: ``Tensor = torch.cuda.FloatTensor``."""
    kind = type(torch.FloatTensor)
    return {name for name, value in space.items() if type(value) is kind and value.is_cuda}


def calls_one(node: ast.AST, names: Collection[str]) -> bool:
    """Whether something calls one of these."""
    return any(isinstance(n, ast.Call) and is_call_of(n, names) for n in within(node))


def is_call_of(node: ast.expr, names: Collection[str]) -> bool:
    """Whether an expression is a call of one of these, or ``x.type(Tensor)`` of one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "type" and node.args:
        return isinstance(node.args[0], ast.Name) and node.args[0].id in names
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _written(sources: Mapping[str, Source], value: Any) -> Function | None:
    """Where one of the user's functions is written, if no function is around it and nothing decorates it."""
    code = value.__code__ if isinstance(value, types.FunctionType) else None
    source = sources.get(code.co_filename) if code is not None else None
    if source is None or code is None:
        return None
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and (node.name, first_line(node)) == (code.co_name, code.co_firstlineno):
            return node if not node.decorator_list else None
    return None


def _called_in(function: Function) -> set[str]:
    return {n.func.id for n in within(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def _only_copies(sources: Mapping[str, Source], held: Any, test: Test, depth: int) -> bool:
    """Whether a helper reads nothing of the device, draws nothing there, and calls only such helpers of the user's."""
    node, space = _written(sources, held), held.__globals__
    if node is None or not depth:
        return False
    is_host = test(node, space)
    for part in (n for line in node.body for n in within(line)):
        if isinstance(part, ast.stmt) and not isinstance(part, _LINES):
            return False
        if isinstance(part, ast.Expr) and not is_text(part):
            return False
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and not is_host(part):
            return False
        if isinstance(part, ast.Call) and path_of(part.func).partition(".")[0] == "torch" and "rand" in called(part):
            return False  # where the device draws, the order counts
        inner = space.get(part.func.id) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) else None
        own = isinstance(inner, types.FunctionType) and inner.__code__.co_filename in sources
        if own and (inner is held or not _only_copies(sources, inner, test, depth - 1)):
            return False
    return True
