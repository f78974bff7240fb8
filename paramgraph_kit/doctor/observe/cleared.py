"""Lines that clear what a graph goes on with, an optimizer's state or gradients, and the same in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, last_name, nodes_of, tree_of

_EMPTY = ("dict", "defaultdict")
_ZERO = "[v.zero_() for v in {}.values() if torch.is_tensor(v)]"
_ALL = f"for state in {{}}.values(): {_ZERO.format('state')}"


def clearing(file: str) -> Iterator[tuple[int, str, str, str]]:
    """Lines of a file that empty the state of an optimizer: where, in which function, as it is, and in place."""
    tree = tree_of(file) or ast.Module([], [])
    functions = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])]
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.stmt)):
        if after := _kept_in_place(node):
            around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
            name = max(around, key=lambda f: f.lineno).name if around else "<module>"
            yield node.lineno, name, ast.unparse(node), after


def _kept_in_place(node: ast.stmt) -> str:
    """The same in place for ``opt.state.clear()``, ``opt.state = {}`` and ``opt.state[p] = {}``; else nothing."""
    func = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.attr == "clear":
        target: ast.expr = func.value
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_empty(node.value):
        target = node.targets[0]
    else:
        return ""
    entry = isinstance(target, ast.Subscript)
    held = target.value if isinstance(target, ast.Subscript) else target
    if not isinstance(held, ast.Attribute) or held.attr != "state":
        return ""
    return (_ZERO if entry else _ALL).format(ast.unparse(target))


def _is_empty(value: ast.expr) -> bool:
    made = isinstance(value, ast.Call) and last_name(value.func) in _EMPTY
    return made or (isinstance(value, ast.Dict) and not value.keys)


def gradients_given(code: CodeType) -> Iterator[tuple[ast.Assign, str]]:
    """Statements of a function that set gradients to None, or give them other tensors, each with the same in place."""
    for node in nodes_of(code):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute) and target.attr == "grad":
            path, value = ast.unparse(target), ast.unparse(node.value)
            yield node, f"{path}.zero_()" if value == "None" else f"{path}.copy_({value})"
