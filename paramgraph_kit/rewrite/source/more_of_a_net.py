"""Branches that bring more of a net into a loss: parameters that have gradients by them alone, and None without.

Where ``torch.where`` chooses, they have zeros instead: Adam counts its steps then, and a weight decay decays them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import is_backward, stored
from paramgraph_kit.rewrite.source.place import called

APART = ContextVar("apart", default=False)  # whether an optimizer that nobody sees here takes the gradients
_LIBRARIES = ("torch", "F", "nn", "functional", "np", "numpy", "math", "random")


def brings_more(function: ast.FunctionDef | ast.AsyncFunctionDef, node: ast.If) -> bool:
    """Whether what a branch adds to a loss comes of modules, or results of them, that nothing else there reads."""
    if asks_otherwise(node.test):
        return False
    inside = [n for part in (*node.body, *node.orelse) for n in within(part)]
    every = [n for part in function.body for n in within(part)]
    ids = {id(n) for n in inside}
    losses = _goes_into(every) if any(map(is_backward, every)) else _returned(every) if _is_forward(function) else set()
    adds = [n for n in inside if isinstance(n, (ast.Assign, ast.AugAssign)) and stored([n]) & losses]
    if not adds:
        return False
    outside = [n for n in every if id(n) not in ids]
    elsewhere = {path_of(n.func) for n in outside if isinstance(n, ast.Call)}
    calls = [path_of(n.func) for n in inside if isinstance(n, ast.Call)]
    own = [each for each in calls if each and each.split(".")[0] not in _LIBRARIES and each not in elsewhere]
    if any(each.startswith("self.") or "." not in each for each in own if not _is_plain(each)):
        return True
    made = {name for n in outside if isinstance(n, ast.Assign) and _calls_own(n.value) for name in stored([n])}
    read = {n.id for n in outside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return bool({n.id for each in adds for n in ast.walk(each.value) if isinstance(n, ast.Name)} & made - read)


def asks_otherwise(test: ast.expr) -> bool:
    """Tests of a mode, of None or of a type: those are another function."""
    parts = [*ast.walk(test)]
    none = any(isinstance(n, ast.Constant) and n.value is None for n in parts)
    mode = any(isinstance(n, ast.Attribute) and n.attr == "training" for n in parts)
    return none or mode or any(isinstance(n, ast.Call) and called(n) in ("isinstance", "hasattr") for n in parts)


def _goes_into(every: list[ast.AST]) -> set[str]:
    """The names that a backward pass goes back from, and those that these are made of."""
    found = {name for n in every if is_backward(n) for name in names_in(n)}
    made = [n for n in every if isinstance(n, (ast.Assign, ast.AugAssign))]
    for _ in range(3):
        found |= {name for n in made if stored([n]) & found for name in names_in(n.value)}
    return found


def _returned(every: list[ast.AST]) -> set[str]:
    return {name for n in every if isinstance(n, ast.Return) and n.value is not None for name in names_in(n.value)}


def _is_forward(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name == "forward" and bool(function.args.args) and function.args.args[0].arg == "self"


def _calls_own(value: ast.expr) -> bool:
    calls = [path_of(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)]
    return any(each and each.split(".")[0] not in _LIBRARIES for each in calls)


def _is_plain(path: str) -> bool:
    return path in ("len", "print", "int", "float", "range", "min", "max", "sum", "zip", "enumerate", "abs", "bool")


def minds_zeros(values: Iterable[Any]) -> bool:
    """Whether an optimizer among some values does something of gradients that are zeros."""
    found = [each for each in values if isinstance(each, torch.optim.Optimizer)]
    return any(type(each) is not torch.optim.SGD or any(g["weight_decay"] for g in each.param_groups) for each in found)
