"""Gradients of what a function is given, which it reads: others each time, where a graph adds to one."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any, TypeGuard

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

_SAID = (
    "`{name}.grad` is a new one at each call, as `{name}` is another tensor then; a graph has one, and where a warm-up "
    "has left it a gradient, each replay adds to that"
)


def problems(
    made: Collection[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any], codes: Iterable[CodeType]
) -> list[Failure]:
    """The backward pass that leaves such a gradient; ``made`` are all that a call has left, and nobody has zeroed."""
    given = [each for each in (*args, *kwargs.values()) if any(each is one for one in made)]
    nodes = [(code, node) for code in codes for node in nodes_of(code)] if given else []
    read = {n.value.id for _, n in nodes if _is_grad(n) and isinstance(n.value, ast.Name)}
    written = {*_written(node for _, node in nodes)}
    names = sorted(read & {name for code, _ in nodes for name in code.co_varnames[: code.co_argcount]} - written)
    calls = [(c, n) for c, n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "backward"]
    if len(names) != 1 or not calls or any(map(_zeroed_in, {code.co_filename for code, _ in calls})):
        return []
    code, call = calls[0]
    text = ast.unparse(call)
    words = f"before  {text}\nafter   {names[0]}.grad = None; {text}"
    failure = BY_ID["gradients-accumulate"].failure(_SAID.format(name=names[0]), frame_at(code, call.lineno))
    return [replace(failure, fix=words)]


def _zeroed_in(file: str) -> bool:
    """Whether a line of a file zeroes a gradient by its name, as who calls the function may do between two calls."""
    nodes = [*ast.walk(tree)] if (tree := tree_of(file)) is not None else []
    zeroing = (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == "zero_")
    stores = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    in_place = any(_is_grad(part) for n in zeroing for part in ast.walk(n.func))
    return in_place or any(n.attr == "grad" for n in stores)


def _is_grad(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load)


def _written(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of what is written in place, or whose gradient is: ``w -= g``, ``w.data.sub_(g)``, ``w.grad.zero_()``."""
    for node in nodes:
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            target = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            in_place = node.func.attr.endswith("_") and not node.func.attr.startswith(("requires_grad", "__"))
            target = node.func.value if in_place else None
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        if isinstance(target, ast.Name):
            yield target.id
