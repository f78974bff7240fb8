"""Which names of a function are surely tensors, as its lines tell: what a module gives, and what is computed of one."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import CodeType, MethodType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, pairs_of
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held import code_of, is_a

_TO_HOST = frozenset({"item", "tolist", "size", "dim", "numel", "stride", "shape", "ndim", "device", "dtype", "numpy"})
_OF_TORCH = ("torch", "F", "functional")
_DEEP = 3


@dataclass(frozen=True)
class TensorNames:
    """A function's names: those that its object, or its caller, has told, and those that its lines make tensors."""

    known: Mapping[str, Any]
    names: frozenset[str]

    def has(self, node: ast.AST | None, deep: int = _DEEP) -> bool:
        """Whether what stands there is a tensor."""
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            sides = [getattr(node, side, None) for side in ("left", "right", "operand")]
            return any(self.has(each, deep) for each in sides if each is not None)
        if isinstance(node, ast.Name) and node.id in self.names:
            return True
        if isinstance(node, ast.Subscript) and self.has(node.value, deep):
            return True
        if isinstance(node, ast.Call):
            return self._gives(node, deep)
        at = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        return at and is_a(path_value(node, dict(self.known), {}), torch.Tensor)  # type: ignore[arg-type]

    def called(self, call: ast.Call) -> Any:
        """What a call calls, where that is known: a module, a method of an object's."""
        return path_value(call.func, dict(self.known), {})

    def _gives(self, call: ast.Call, deep: int) -> bool:
        of, name = getattr(call.func, "value", None), last_name(call.func)
        if of is not None and name not in _TO_HOST and self.has(of, deep):
            return hasattr(torch.Tensor, name)
        if last_name(of or call) in _OF_TORCH and (hasattr(torch, name) or hasattr(torch.nn.functional, name)):
            return any(self.has(each, deep) for each in call.args)
        called = self.called(call)
        if is_a(called, torch.nn.Module):
            return True
        code = code_of(called)
        if code is None or deep == 0:
            return False
        nodes = [*nodes_of(code)]
        given = [each.value for each in nodes if isinstance(each, ast.Return) and each.value is not None]
        there = tensor_names(nodes, *self.handed(call, called, code))
        return bool(given) and all(there.has(each, deep - 1) for each in given)

    def handed(self, call: ast.Call, called: Any, code: CodeType) -> tuple[dict[str, Any], frozenset[str]]:
        """What a function's names mean where it is called so: its object, and those that are given tensors."""
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        bound = is_a(called, MethodType)
        placed = [*zip(names[int(bound) :], call.args, strict=False)]
        placed += [(k.arg, k.value) for k in call.keywords if k.arg in names]
        own = {names[0]: called.__self__} if bound and names else {}
        return own, frozenset(name for name, given in placed if self.has(given))


def tensor_names(
    nodes: Collection[ast.AST], known: Mapping[str, Any], names: Collection[str] = frozenset()
) -> TensorNames:
    """The names of a function, where some values are known, and some names are given tensors."""
    annotated = [n for n in nodes if isinstance(n, ast.arg) and n.annotation is not None]
    sure = {*names, *(n.arg for n in annotated if last_name(n.annotation or n) == "Tensor")}
    given: dict[str, list[ast.AST]] = {}
    for node in nodes:
        for target, value in pairs_of(node):
            if isinstance(target, ast.Name):
                given.setdefault(target.id, []).append(value)
    # names that a loop, a with, or one of several targets gets are not followed
    told = {id(target) for node in nodes for target, _ in pairs_of(node)}
    told |= {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    stored = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    unknown = {n.id for n in stored if id(n) not in told}
    while True:
        more = {
            name for name, values in given.items() if _are_tensors(name, values, TensorNames(known, frozenset(sure)))
        }
        if more <= sure | unknown:
            return TensorNames(known, frozenset(sure - unknown))
        sure |= more - unknown


def _are_tensors(name: str, values: list[ast.AST], so_far: TensorNames) -> bool:
    """Whether all that a name is given are tensors, one of them by itself: ``x = self.x``, ``x = x + dt * v``."""
    with_it = replace(so_far, names=so_far.names | {name})
    return any(map(so_far.has, values)) and all(map(with_it.has, values))
