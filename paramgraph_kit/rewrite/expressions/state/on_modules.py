"""What a step gives a module anew is written where the module has it: ``m.w = Parameter(t)`` copies ``t`` there."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_TABLES = {"_buffers": "", "_parameters": ".data", "_modules": ""}
_REGISTER = {"register_buffer": "", "register_parameter": ".data", "add_module": "", "register_module": ""}


def fill_what_it_has(place: Place) -> list[Edit]:
    """``m.register_buffer("h", t)`` becomes ``m.h.copy_(t)``, and what a new module has is loaded into the old one."""
    node = place.statement
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        text = _of_a_call(place, node.value)
    else:
        text = _of_an_assignment(place, node)
    return [place.source.replace(node, text)] if text else []


def _of_a_call(place: Place, call: ast.Call) -> str:
    if not isinstance(call.func, ast.Attribute):
        return ""
    if any(keyword.arg == "assign" for keyword in call.keywords):
        keywords = [f"{k.arg}={place.text(k.value)}" for k in call.keywords if k.arg not in (None, "assign")]
        if len(keywords) + 1 != len(call.keywords):
            return ""
        return f"{place.text(call.func)}({', '.join([*map(place.text, call.args), *keywords])})"
    name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    if call.func.attr not in _REGISTER or len(call.args) < 2 or not isinstance(name, str) or not name.isidentifier():
        return ""
    return _filled(place, f"{place.text(call.func.value)}.{name}", call.args[1], _REGISTER[call.func.attr])


def _of_an_assignment(place: Place, node: ast.stmt) -> str:
    target = target_of(node)
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute) and target.value.attr in _TABLES:
        return _filled(place, place.text(target), node.value, _TABLES[target.value.attr])
    if isinstance(target, ast.Attribute) and place.failure.code == "parameter-rebound" and target.attr != "data":
        return _filled(place, place.text(target), node.value, ".data")
    return ""


def _filled(place: Place, path: str, value: ast.expr, data: str) -> str:
    if " is another module " in place.failure.message:
        return f"{path}.load_state_dict({place.source.bracketed(value)}.state_dict())"
    if isinstance(value, ast.Call) and called(value) == "Parameter" and value.args:
        value = value.args[0]
    return f"{path}{data}.copy_({place.text(value)})"
