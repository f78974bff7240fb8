"""What statements add to a list, or to a dictionary, that has a name."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.kept_if_better import added_to_what_was

KEEPS = ("append", "add", "appendleft", "setdefault")
_GROW = (*KEEPS, "extend", "insert", "update", "put", "put_nowait")
_KEY_AND_VALUE = 2
# Methods of tensors that give one with memory of its own; another class may have some, and give what it keeps.
_COMPUTE = frozenset(
    """sum mean std var median prod norm amax amin argmax argmin logsumexp softmax log_softmax sigmoid tanh exp log
    clone item tolist""".split()  # noqa: SIM905 - shorter so
)


def added_to(node: ast.AST, name: str) -> ast.expr | None:
    """What a statement adds to the list of a name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROW and node.args:
        begins = node.func.attr == "setdefault" and _is_empty(node.args[-1])  # what is added to that is told there
        return _each(node.args[-1]) if _is_named(node.func.value, name) and not begins else None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return node.value if _is_named(node.targets[0].value, name) else None
    if isinstance(node, ast.AugAssign) and _is_named(node.target, name):
        return _each(node.value)
    if isinstance(node, ast.Assign) and last_name(node.targets[0]) == name and (more := added_to_what_was(node)):
        return more
    if isinstance(node, ast.Assign) and last_name(node.targets[0]) == name:
        made = node.value
        return made.elt if isinstance(made, ast.ListComp) else made.value if isinstance(made, ast.DictComp) else None
    return None


def is_computed(what: ast.expr) -> bool:
    """Whether it is a call of what makes tensors of its own, as far as its name tells."""
    return isinstance(what, ast.Call) and isinstance(what.func, ast.Attribute) and what.func.attr in _COMPUTE


def _each(value: ast.expr) -> ast.expr:
    """What each entry is of what a comprehension makes; of a list, the list."""
    return value.elt if isinstance(value, (ast.ListComp, ast.GeneratorExp)) else value


def _is_empty(value: ast.expr) -> bool:
    """Whether it is a list, or a dictionary, without entries: ``[]``, ``{}``, ``list()``, ``deque(maxlen=9)``."""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, (ast.List, ast.Tuple)):
        return not value.elts
    return isinstance(value, ast.Call) and not value.args and last_name(value.func) in ("list", "dict", "set", "deque")


def _is_named(node: ast.expr, name: str) -> bool:
    """Whether a list is called so, or is one of those in what is called so."""
    if (entry := _entry(node)) is not None:
        node = entry
    if name.endswith("]"):
        return isinstance(node, ast.Subscript) and ast.unparse(node).endswith(name)
    while isinstance(node, ast.Subscript):
        node = node.value
    return last_name(node) == name


def _entry(node: ast.expr) -> ast.Subscript | None:
    """``rows[key]`` of ``rows.setdefault(key, [])``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "setdefault":
        return None
    return ast.Subscript(node.func.value, node.args[0], ast.Load()) if len(node.args) == _KEY_AND_VALUE else None
