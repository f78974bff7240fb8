"""A line that computes with what it reads of the device, as it stands of tensors: ``min(0.1, c / x.max().item())``."""

from __future__ import annotations

import ast

import torch

_ENDS = {"min": "max", "max": "min"}
_CUT = {"float": "", "int": ".long()", "round": ".round()", "bool": ".bool()"}


def of_tensors(text: str) -> str:
    """The same with ``.detach()`` for ``.item()``, and with torch's functions for the host's.

    >>> of_tensors("dt = min(0.1, h / max(v.item(), 1e-6))")
    'dt = (h / v.detach().clamp(min=1e-06)).clamp(max=0.1)'
    >>> of_tensors("a = math.exp(min(0.0, dH.item()))")
    'a = torch.exp(dH.detach().clamp(max=0.0))'
    """
    there = text.replace(".item()", ".detach()")
    try:
        tree = ast.parse(there)
    except SyntaxError:  # a part of a statement
        return there
    changes = _Changes()
    changed = ast.unparse(changes.visit(tree))
    return changed if changes.found else there


class _Changes(ast.NodeTransformer):
    """Puts torch's functions where the host's are given tensors."""

    found = False

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The innermost first."""
        self.generic_visit(node)
        tensors = [each for each in node.args if _is_read(each)]
        changed = _changed(node, tensors) if tensors and not node.keywords else None
        self.found = self.found or changed is not None
        return changed or node


def _changed(node: ast.Call, tensors: list[ast.expr]) -> ast.expr | None:
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "math":
        known = hasattr(torch, function.attr) and len(node.args) == 1
        return _expression(f"torch.{function.attr}({{}})", *node.args) if known else None
    if not isinstance(function, ast.Name):
        return None
    if function.id in _ENDS and len(node.args) == 2:
        if len(tensors) == 2:
            return _expression(f"torch.{function.id}imum({{}}, {{}})", *node.args)
        end = next(each for each in node.args if each is not tensors[0])
        return _expression(f"({{}}).clamp({_ENDS[function.id]}={{}})", tensors[0], end)
    if function.id in _CUT and len(node.args) == 1:
        return _expression(f"({{}}){_CUT[function.id]}", *node.args)
    return None


def _expression(text: str, *parts: ast.expr) -> ast.expr:
    return ast.parse(text.format(*map(ast.unparse, parts)), mode="eval").body


def _is_read(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in ("detach", "clamp") for n in ast.walk(node))
