"""Statements that give an attribute a value by its name as a text."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import last_name

_SETTERS = ("setattr", "__setattr__")
_REGISTERS = ("register_buffer", "register_parameter", "register_module", "add_module")


def sets_by_name(node: ast.AST, name: str) -> bool:
    """Whether it binds an attribute by a text, of a name that is known or of any.

    ``setattr(x, "t", new)``, ``x.register_buffer("t", new)``, ``vars(x)["t"] = new``, ``x.__dict__.update(t=new)``.
    """
    if isinstance(node, ast.Call):
        return _calls(node, name)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    flat = [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return any(is_entry_of(each, "vars", name) for each in flat)


def _calls(node: ast.Call, name: str) -> bool:
    called = last_name(node.func)
    if called in _SETTERS and len(node.args) > 1:
        return _may_be(node.args[-2], name)
    if called in _REGISTERS:
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        return any(_may_be(each, name) for each in given)
    if called != "update" or not isinstance(node.func, ast.Attribute) or not _is_dict(node.func.value):
        return False
    keys = [key for each in node.args if isinstance(each, ast.Dict) for key in each.keys]
    plain = len(keys) + len(node.keywords) > 0 and all(isinstance(each, ast.Dict) for each in node.args)
    names = [k.arg for k in node.keywords]
    return name in names or None in names or not plain or any(key is None or _may_be(key, name) for key in keys)


def is_entry_of(node: ast.AST | None, function: str, name: str) -> bool:
    """Whether it is ``globals()["name"]``, or the same of ``vars(x)`` or ``x.__dict__``."""
    if not isinstance(node, ast.Subscript):
        return False
    if function == "vars":
        return _is_dict(node.value) and _may_be(node.slice, name)
    held = node.value.func if isinstance(node.value, ast.Call) else node.value
    return last_name(held) == function and isinstance(node.slice, ast.Constant) and node.slice.value == name


def _is_dict(node: ast.expr) -> bool:
    """Whether it is what holds an object's attributes: ``vars(x)``, ``x.__dict__``."""
    return last_name(node) == "__dict__" or (isinstance(node, ast.Call) and last_name(node.func) == "vars")


def _may_be(node: ast.expr, name: str) -> bool:
    return not isinstance(node, ast.Constant) or node.value == name
