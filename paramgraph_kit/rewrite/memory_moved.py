"""Lines that give a parameter other memory, which no line of a step names: its graph goes on with what was there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from paramgraph_kit.rewrite.source.edits import path_of

_LOADS = "load_state_dict"
_REGISTERS = ("register_buffer", "register_parameter", "add_module", "register_module")
_PARTS = ("weight", "bias")  # of torch's modules, whose own lines read them


def memory_moved(body: Iterable[ast.AST]) -> str:
    """The name by which one of some lines does that, as they are written, or "".

    ``p.data = v`` and ``net.weight = nn.Parameter(w)``, but not ``p.data.copy_(v)``, nor an object's own ``self.data``.
    """
    return next((name for name, _ in moves_of(body)), "")


def moves_of(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Each such name, and what it is done to: ``p``, or ``net``."""
    for node in (part for top in body for part in ast.walk(top)):
        call = node if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if call is not None and isinstance(call.func, ast.Attribute):
            path = path_of(call.func)
            if path.endswith(_LOADS) and any(_is_true(n, "assign") for n in call.keywords):
                yield _LOADS, call.func.value
            elif path.endswith(".set_"):
                yield path.split(".")[-2], call.func.value
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in (n for each in targets for n in ast.walk(each) if isinstance(n, ast.Attribute)):
            if (is_data(target) and isinstance(target.ctx, ast.Store)) or (
                target.attr in _PARTS and _is_parameter(node)
            ):
                yield target.attr, target.value


def is_data(target: ast.Attribute) -> bool:
    """Whether that may be a tensor's memory."""
    return target.attr == "data" and path_of(target) != "self.data"


def bound_by_text(node: ast.AST) -> str:
    """The attribute that a line binds by its name as a text, or "".

    ``setattr(self, "t", new)``, ``net.register_buffer("t", new)``, ``vars(self)["t"] = new``, or by ``__dict__``.
    """
    if isinstance(node, ast.Call):
        name = path_of(node.func)
        at = 1 if name == "setattr" else 0 if name.rpartition(".")[2] in _REGISTERS else len(node.args)
        return _text(node.args[at]) if at < len(node.args) else ""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        held = target.value if isinstance(target, ast.Subscript) else None
        by_vars = isinstance(held, ast.Call) and path_of(held.func) == "vars"
        if isinstance(target, ast.Subscript) and (by_vars or getattr(held, "attr", "") == "__dict__"):
            return _text(target.slice)
    return ""


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_parameter(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Assign) else None
    return isinstance(value, ast.Call) and path_of(value.func).rpartition(".")[2] == "Parameter"


def _is_true(option: ast.keyword, name: str) -> bool:
    return option.arg == name and isinstance(option.value, ast.Constant) and option.value.value is True
