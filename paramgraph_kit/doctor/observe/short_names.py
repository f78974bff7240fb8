"""Variables that a function gives a path once, and reads parts of: ``s = self.state``, ``s.mean``."""

from __future__ import annotations

import ast
import copy
from functools import lru_cache
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import nodes_of, unpacked


def is_key(node: ast.AST) -> bool:
    """Whether an entry's key is written out: ``"scale"``, ``-1``."""
    node = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(node, ast.Constant)


def first_of(node: ast.AST) -> str:
    """The variable that a path begins at; "" where it is none."""
    while isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and is_key(node.slice)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(1024)
def _short_names(code: CodeType) -> tuple[tuple[str, ast.expr], ...]:
    nodes = [*nodes_of(code)]
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del))]
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found: dict[str, ast.expr] = {}
    for node in (n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1):
        for target, value in unpacked(node, node.targets[0]):
            name = target.id if isinstance(target, ast.Name) else ""
            is_part = isinstance(value, (ast.Attribute, ast.Subscript)) and first_of(value) not in ("", name)
            if stored.count(name) == 1 and name not in given and is_part:
                found[name] = value
    return tuple(found.items())


def short_names(code: CodeType) -> dict[str, ast.expr]:
    """Each such variable of a function, with what it stands for."""
    return dict(_short_names(code))


def in_full(node: ast.expr, short: dict[str, ast.expr]) -> ast.expr:
    """A path that begins at such a variable, from what that stands for; the variable itself stays as it is."""
    if isinstance(node, ast.Name) or first_of(node) not in short:
        return node
    whole = copy.deepcopy(node)
    part: Any = whole
    while not isinstance(part.value, ast.Name):
        part = part.value
    part.value = short[part.value.id]
    return in_full(whole, {name: value for name, value in short.items() if name != first_of(node)})
