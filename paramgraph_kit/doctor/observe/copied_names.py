"""What is written where a variable goes on having a result, whatever that is: a tensor, or what holds several."""

from __future__ import annotations

import ast
import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.held import is_a

_NAMED = (ast.Name, ast.Attribute, ast.Subscript)


def copied_at(node: Any, name: str, value: Any) -> tuple[str, str]:
    """The line that gives a variable its result, and the same with a copy of it.

    Args:
        node: the line, or the part of it that gives the name a value.
        name: of the variable, which may be one of several that the line names.
        value: what it is.
    """
    line, given, targets = ast.unparse(node), ast.unparse(node.value), targets_of(node)
    alone = len(targets) == 1 and isinstance(targets[0], (ast.Name, ast.Attribute))
    if alone and (isinstance(node.value, (ast.Name, ast.Attribute)) or is_a(value, torch.Tensor)):
        anew: Any = copy.deepcopy(node)
        anew.value = ast.Name("copied_")
        return line, ast.unparse(anew).replace("copied_", copy_of(given, value))
    return line, f"{line}; {name} = {copy_of(name, value)}"


def targets_of(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    """What a line gives its value to."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def cloned_at(node: ast.AST, *what: ast.expr) -> tuple[str, str]:
    """A line, and the same with a copy of each of some of its parts."""
    clones = {each: ast.unparse(ast.Call(ast.Attribute(each, "clone", ast.Load()), [], [])) for each in what}
    return with_copies(node, clones)


def with_copies(node: ast.AST, copies: dict[ast.expr, str]) -> tuple[str, str]:
    """A line, and the same with something else for some of its parts: copies of them."""
    places = {(each.lineno, each.col_offset, ast.dump(each)): f"copied_{n}_" for n, each in enumerate(copies)}

    class _Copy(ast.NodeTransformer):
        def visit(self, each: ast.AST) -> ast.AST:
            at = (each.lineno, each.col_offset, ast.dump(each)) if isinstance(each, ast.expr) else None
            if at not in places:
                return self.generic_visit(each)
            return ast.Name(places[at])

    text = ast.unparse(_Copy().visit(copy.deepcopy(node)))
    for name, copied in zip(places.values(), copies.values(), strict=True):
        text = text.replace(name, copied)  # as it is written: of what is parsed, Python writes `tuple((...))`
    return ast.unparse(node), text


def grouped(what: ast.expr) -> str:
    """The text of what a method is called of, in brackets where it needs them: ``(await run(x))``."""
    text = ast.unparse(what)
    return f"({text})" if isinstance(what, (ast.Await, ast.IfExp, ast.BinOp, ast.UnaryOp, ast.BoolOp)) else text


def clone_of(node: ast.AST, what: ast.expr) -> str:
    """A copy of what a statement keeps; of each entry where it adds those: ``kept += step(x)``."""
    func = node.func if isinstance(node, ast.Call) else None
    extends = isinstance(func, ast.Attribute) and func.attr == "extend" and what in node.args  # type: ignore[attr-defined]
    adds = extends or (isinstance(node, ast.AugAssign) and node.value is what)
    is_given = adds and isinstance(what, (ast.Call, ast.Await, *_NAMED))  # `kept += costs` has several, too
    return f"[y.clone() for y in {ast.unparse(what)}]" if is_given else f"{grouped(what)}.clone()"


def copy_of(given: str, value: Any) -> str:
    """The text of a copy of what a text names; ``value``: what that is."""
    kind = type(value)
    if _has_rows(value):
        return f"copy.deepcopy({given})"
    if is_a(value, dict):
        return f"{{k: {_part(dict.values(value), 'v')} for k, v in {given}.items()}}"
    if kind in (list, tuple):
        part = _part(value, "v")
        return f"[{part} for v in {given}]" if kind is list else f"tuple({part} for v in {given})"
    return f"{given}.clone()" if is_a(value, torch.Tensor) else f"copy.deepcopy({given})"


def _has_rows(value: Any) -> bool:
    """Whether parts of it have parts with tensors themselves."""
    parts = [*dict.values(value)] if is_a(value, dict) else [*value] if type(value) in (list, tuple) else []
    rows = [each for each in parts if is_a(each, dict) or type(each) in (list, tuple)]
    return any(is_a(leaf, torch.Tensor) for each in rows for leaf in tree_leaves(each))


def _part(values: Any, name: str) -> str:
    only = all(is_a(each, torch.Tensor) for each in values)
    return f"{name}.clone()" if only else f"{name}.clone() if torch.is_tensor({name}) else {name}"
