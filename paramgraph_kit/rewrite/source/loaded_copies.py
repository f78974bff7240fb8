"""A copy of a module that a step puts in the place of the last one: a graph reads that, so the copy is loaded into it.

``self.target = copy.deepcopy(self.net)`` becomes ``self.target.load_state_dict(self.net.state_dict())``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.unsaved import load
from paramgraph_kit.rewrite.source.edits import Function, Source, within
from paramgraph_kit.rewrite.source.place import called

Value = Callable[[str], Any]
_MODES = ("eval", "train", "requires_grad_")  # of the copy, said once more
_PLACES = ("to", "cuda", "float")  # where the last one is already


def loaded(source: Source, node: ast.AST, value: Value, read: Iterable[ast.AST]) -> list[str]:
    """The lines that stand for such a statement; none where it is another one, or nothing of ``read`` reads the copy.

    Args:
        source: the file of the statement.
        value: what a path means.
        read: what the step runs.
    """
    function = source.function_of(node) if isinstance(node, ast.Assign) else None
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or function is None or function.name == "__init__":
        return []  # which puts it there first
    target, copied, modes = node.targets[0], node.value, list[str]()
    path = source.text(target)
    while isinstance(copied, ast.Call) and isinstance(copied.func, ast.Attribute) and called(copied) != "deepcopy":
        if copied.func.attr in _MODES:
            modes.insert(0, f"{path}.{copied.func.attr}({', '.join(map(source.text, copied.args))})")
        elif copied.func.attr not in _PLACES:
            return []
        copied = copied.func.value
    if not isinstance(copied, ast.Call) or called(copied) != "deepcopy" or len(copied.args) != 1 or copied.keywords:
        return []
    held, given = _held(target, function, value), value(ast.unparse(copied.args[0]))
    if not is_a(held, torch.nn.Module) or not any(_reads(each, target) for each in read):
        return []
    if is_a(given, torch.nn.Module) and _forms(given) != _forms(held):
        return []
    other = source.text(copied.args[0])
    return [*load(path, other, held), *modes]


def _forms(module: torch.nn.Module) -> dict[str, Any]:
    return {name: getattr(each, "shape", None) for name, each in module.state_dict().items()}


def _held(target: ast.expr, function: Function, value: Value) -> Any:
    """What is there by now."""
    if isinstance(target, ast.Name):
        shared = (n for part in function.body for n in within(part) if isinstance(n, (ast.Global, ast.Nonlocal)))
        return value(target.id) if any(target.id in each.names for each in shared) else None
    if isinstance(target, ast.Attribute):
        return value(ast.unparse(target))
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        table = value(ast.unparse(target.value))
        return table.get(target.slice.value) if type(table) is dict else None
    return None


def _reads(node: ast.AST, target: ast.expr) -> bool:
    """Whether an expression reads it: an attribute, also of another name for its object."""
    if not isinstance(node, type(target)) or not isinstance(getattr(node, "ctx", None), ast.Load):
        return False
    if isinstance(node, ast.Attribute) and isinstance(target, ast.Attribute):
        return node.attr == target.attr
    return ast.unparse(node) == ast.unparse(target)
