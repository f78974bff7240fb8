"""Sizes that an object has from its ``__init__`` on: what they cut is as long in each call."""

from __future__ import annotations

import ast


def is_set_once(size: ast.expr, tree: ast.Module | None) -> bool:
    """Whether a size is made of attributes alone that no other method of the file sets: ``self.nodes + 1``."""
    if tree is None or any(isinstance(n, (ast.Call, ast.Subscript)) for n in ast.walk(size)):
        return False
    held = [n for n in ast.walk(size) if isinstance(n, ast.Attribute)]
    names = {n.id for n in ast.walk(size) if isinstance(n, ast.Name)}
    if not held or names != {"self"} or any(ast.unparse(each.value) != "self" for each in held):
        return False
    first = {
        id(n)
        for made in ast.walk(tree)
        if isinstance(made, ast.FunctionDef) and made.name == "__init__"
        for n in ast.walk(made)
    }
    stores = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load))
    asked = {each.attr for each in held}
    elsewhere = {n.attr for n in stores if id(n) not in first}
    by_name = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}  # setattr
    return asked.isdisjoint(elsewhere | by_name)
