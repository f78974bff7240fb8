"""Names around a function to which the file gives other values, or writes into, after the function is made.

What a loop around a step does so, ``CFG["scale"] = i`` or ``global scale``, a trial of the step alone does not see.
"""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from paramgraph_kit.doctor.observe.held import attribute_of, attributes_of
from paramgraph_kit.rewrite.source.edits import Source, locals_of, path_of
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.reached_as import reached
from paramgraph_kit.rewrite.source.set_elsewhere import (
    Aliases,
    aliases,
    is_of_library,
    is_set_in_other_files,
    sets_by_text,
)
from paramgraph_kit.rewrite.source.stores import GROWS

_WRITES = (*GROWS, "pop", "clear", "fill", "sort", "remove", "reverse", "update", "setdefault", "popitem", "put")
_INTO_FIRST = ("shuffle", "copyto", "heappush", "heappop", "setattr")  # functions that write their first argument
_LIBRARIES = ("torch", "numpy", "builtins")
_NAMESPACES = (SimpleNamespace, Namespace)
_NO_VALUE = ("requires_grad_", "share_memory_")


def is_set_later(source: Source, statement: ast.stmt, text: str, space: Mapping[str, Any]) -> bool:
    """Whether an expression reads what the file sets or writes elsewhere than before a statement's function.

    Args:
        space: global names of the function.
    """
    names, attributes, keys, modules = set[str](), set[str](), set[object](), set[str]()
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(space.get(node.id), ModuleType):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            root = path_of(node).partition(".")[0]
            held = space.get(root)
            attributes |= {node.attr} if root and not is_of_library(held) else set()
            if isinstance(held, ModuleType) and not is_of_library(held):
                modules.add(held.__name__.rpartition(".")[2])
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            keys |= {node.slice.value} if isinstance(node.slice.value, str) else set()
    through = _only_through(tree) - names
    for node in ast.walk(source.tree):
        if _sets(source, statement, node, names, attributes) and not _is_own_method(node, through, space):
            return True
    known = names | attributes
    others = aliases(source, known)
    if any(_by_another_name(source, statement, node, known, others, keys) for node in ast.walk(source.tree)):
        return True
    return bool(known) and is_set_in_other_files(source, known, keys, modules)


def is_of_settings(text: str, space: Mapping[str, Any]) -> bool:
    """Whether an expression reads an entry or an attribute of the user's own that whoever has it may set.

    ``meta["sx"]`` and ``cfg.scale``, of which another program, or what is typed later, gives each picture its own.
    """
    for node in ast.walk(ast.parse(text, mode="eval")):
        if not isinstance(node, (ast.Subscript, ast.Attribute)):
            continue
        held, *rest = path_of(node.value).split(".")
        value = space.get(held)
        for each in rest:
            value = attribute_of(value, each, None)
        own = not isinstance(value, (type, ModuleType)) and not type(value).__module__.startswith(_LIBRARIES)
        if isinstance(value, dict) if isinstance(node, ast.Subscript) else own or isinstance(value, _NAMESPACES):
            return True
    return False


def _only_through(tree: ast.AST) -> set[str]:
    """Attributes of which an expression reads only another one: ``table`` of ``self.table.width``."""
    every = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    inner = [n.value for n in every if isinstance(n.value, ast.Attribute)]
    return {n.attr for n in inner} - {n.attr for n in every if n not in inner}


def _is_own_method(node: ast.AST, through: set[str], space: Mapping[str, Any]) -> bool:
    """Whether it calls ``update`` of an object of the user's, which is no dictionary: its lines say what they set."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    name, last = node.func.attr, path_of(node.func.value).rpartition(".")[2]
    if last not in through:
        return False
    objects = [value for _, value in reached(space, space.get("self"))]
    held = [own[last] for each in objects if last in (own := attributes_of(each))]
    return bool(held) and all(_defines(type(each), name) for each in held)


def _defines(kind: type, name: str) -> bool:
    """Whether a class of the user's has a method of this name of its own, and not a library's."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), object)
    return not owner.__module__.startswith(_LIBRARIES) and not issubclass(kind, (dict, list, set))


def _by_another_name(
    source: Source, statement: ast.stmt, node: ast.AST, names: set[str], others: Aliases, keys: set[object]
) -> bool:
    """Whether a node sets one of them by its text, or writes into it through a name that it has as well."""
    target = _written(node)
    path = path_of(target) if target is not None else ""
    keyed = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and getattr(node, "slice", None)
    by_text = sets_by_text(node, names) or (isinstance(keyed, ast.Constant) and keyed.value in keys)
    if not by_text and not any(each == path for _, each in others):
        return False
    function = source.function_of(node)
    if function is None and _is_before(source, statement, node):
        return False
    return by_text or any(each == path and of in (None, function) for of, each in others)


def _sets(source: Source, statement: ast.stmt, node: ast.AST, names: set[str], attributes: set[str]) -> bool:
    function = source.function_of(node)
    if isinstance(node, ast.Name):
        given = not isinstance(node.ctx, ast.Load) and node.id in names
        if function is None:
            return given and not _is_before(source, statement, node)
        return given and node.id not in locals_of(function)
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        making = function is not None and function.name == "__init__"
        return node.attr in attributes and not making and not (function is None and _is_before(source, statement, node))
    path = path_of(target) if (target := _written(node)) is not None else ""
    root, _, last = path.rpartition(".")
    if last not in (attributes if root else names):
        return False
    if function is None:
        return not _is_before(source, statement, node)
    return path.partition(".")[0] not in locals_of(function) if not root else function.name != "__init__"


def _written(node: ast.AST) -> ast.expr | None:
    """What a node writes in place, as ``table`` of ``table[0] = 1``, ``table.append(1)`` and ``shuffle(table)``."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        target: ast.expr = node.value
    elif isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Call) and called(node) in _INTO_FIRST and node.args:
        target = node.args[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name not in _WRITES and not (name.endswith("_") and not name.endswith("__") and name not in _NO_VALUE):
            return None
        target = node.func.value
    else:
        return None
    while isinstance(target, (ast.Subscript, ast.Call)):
        inner = target.value if isinstance(target, ast.Subscript) else target.func
        target = inner.value if isinstance(target, ast.Call) and isinstance(inner, ast.Attribute) else inner
    return target


def _is_before(source: Source, statement: ast.stmt, node: ast.AST) -> bool:
    """Whether a line outside of functions has run when the function of a statement is made, and runs no more."""
    order = source.tree.body
    return order.index(source.outermost(node)) < order.index(source.outermost(statement))
