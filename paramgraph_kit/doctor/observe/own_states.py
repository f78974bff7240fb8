"""What modules of the user's own write as they run: buffers, such as a queue, and numbers, such as its position."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.driver.files import is_library

_BEGINS = ("__init__", "reset", "reset_parameters")


def writes_a_buffer(module: torch.nn.Module) -> bool:
    """Whether one of its own functions writes a buffer of it: ``self.queue[a:b] = keys``."""
    own = {name for name, buffer in module.named_buffers(recurse=False) if buffer is not None}
    return bool(own) and not own.isdisjoint(_written(type(module)))


def counts_in_numbers(path: str, module: torch.nn.Module) -> Iterator[str]:
    """What it calls numbers that it and what it has go on from: ``self.model.ptr``."""
    for inner, each in module.named_modules():
        held = attributes_of(each)
        for name in _written(type(each)):
            if type(held.get(name)) in (int, float) and name != "training":
                parts = inner.split(".") if inner else []
                there = "".join(f".{part}" if part.isidentifier() else f"[{part}]" for part in parts)
                yield f"{path}{there}.{name}"


def _written(kind: type) -> set[str]:
    """Attributes that functions of a class write, but those that begin anew."""
    functions = (f for each in kind.__mro__ for name, f in vars(each).items() if name not in _BEGINS)
    codes = {f.__code__ for f in map(_plain, functions) if f is not None and not is_library(f.__code__.co_filename)}
    nodes = (node for code in codes for node in nodes_of(code))
    return {name for node in nodes if (name := _target(node))}


def _plain(function: object) -> FunctionType | None:
    """A function of a class, without what decorates it."""
    found = getattr(function, "__wrapped__", function)
    return found if isinstance(found, FunctionType) else None


def _target(node: ast.AST) -> str:
    """The attribute of ``self`` that a node writes: by a value, a part of it, or a method in place."""
    target: ast.expr | None = node.targets[0] if isinstance(node, ast.Assign) else None
    target = node.target if isinstance(node, ast.AugAssign) else target
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr.endswith("_") and not func.attr.startswith("_"):
        target = func.value
    while isinstance(target, ast.Subscript):
        target = target.value
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_own and isinstance(target, ast.Attribute) else ""
