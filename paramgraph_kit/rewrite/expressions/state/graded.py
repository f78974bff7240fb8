"""Arguments that a function makes need gradients: it takes tensors of its own over their memory instead.

``x.requires_grad_(True)`` of a parameter ``x`` leaves the caller's tensor with gradients, and each backward pass adds
to them; ``x = x.detach().requires_grad_(True)`` computes the same and leaves the caller's as it was.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, within
from paramgraph_kit.rewrite.source.moving import arguments_of

OWN = ".detach().requires_grad_(True)"


def taken_over(source: Source, function: Function) -> list[Edit]:
    """The edits of one function."""
    names = set(arguments_of(function))
    found = []
    for node in (each for part in function.body for each in within(part)):
        name = _made_to_need(node)
        if name in names and isinstance(node, ast.stmt):
            found.append(source.replace(node, f"{name} = {name}{OWN}"))
    return found


def _made_to_need(node: ast.AST) -> str:
    """``x`` of ``x.requires_grad_(True)`` or ``x.requires_grad = True``, or ""."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        call, of = node.value, node.value.func
        plain = not call.keywords and (not call.args or _is_true(call.args[0]))
        return of.value.id if of.attr == "requires_grad_" and plain and isinstance(of.value, ast.Name) else ""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_true(node.value):
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and isinstance(target.value, ast.Name):
            return target.value.id
    return ""


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
