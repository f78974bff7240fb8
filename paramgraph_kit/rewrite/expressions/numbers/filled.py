"""A number that the device has found, where a tensor is made of it: the device copies it there.

``torch.full((4,), s)`` asks a tensor ``s`` for its number, and ``torch.tensor(s)`` copies and warns.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.expressions.picks.masks import bracketed
from paramgraph_kit.rewrite.source.edits import Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, is_number

READ = re.compile(r"_local_scalar_dense of (?P<dtype>\w+)\[")
_EMPTY = {"full": "empty", "full_like": "empty_like", "new_full": "new_empty"}
_KEPT = ("dtype", "device", "memory_format", "size")
_OF_TORCH = ("exp", "log", "sqrt", "cos", "sin", "tanh", "log1p", "expm1")
_STAY = ("clamp", "detach", "abs", "sqrt", "exp", "log")  # methods whose result is a number where theirs is one
_ONE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


def fill_from_device(place: Place) -> list[Edit]:
    """``torch.full((4,), s, device=d)`` of a number of the device becomes ``torch.empty((4,), device=d).copy_(s)``."""
    found = []
    for call in place.calls(*_EMPTY):
        value, rest = _parts(call)
        of_torch = path_of(call.func) == f"torch.{called(call)}"
        if value is None or not (of_torch or called(call) == "new_full") or not isinstance(call.func, ast.Attribute):
            continue
        options = {option.arg for option in call.keywords}
        there = on_device(place, value)
        if there is None or options - {*_KEPT, "fill_value"}:
            continue
        text, kind = there
        given = [place.text(each) for each in rest]
        if called(call) == "full" and "dtype" not in options:
            if not kind:
                continue  # nobody knows of which type it was
            given += {"float": [], "int": ["dtype=torch.long"], "bool": ["dtype=torch.bool"]}[kind]
        head = f"{place.text(call.func.value)}.{_EMPTY[called(call)]}"
        text = _as_one(place, call, text) or f"{head}({', '.join(given)}).copy_({text})"
        found.append(place.source.replace(call, text))
    return found


def _as_one(place: Place, call: ast.Call, text: str) -> str:
    """``torch.full((), s, dtype=k, device=d)`` as ``s.to(d, k)``, which is a copy, or is stacked."""
    options = {option.arg: place.text(option.value) for option in call.keywords}
    if called(call) != "full" or place.text(call.args[0]) != "()" or options.keys() != {"dtype", "device"}:
        return ""
    stacked = isinstance(place.source.parents.get(call), (ast.List, ast.ListComp))
    return f"{bracketed(text)}.to({options['device']}, {options['dtype']}{', copy=True' * (not stacked)})"


def spread_from_device(place: Place) -> list[Edit]:
    """``torch.linspace(0, s, 4)`` of a number of the device is one from 0 to 1, times what lies between."""
    found = []
    for call in place.calls("linspace"):
        if path_of(call.func) != "torch.linspace" or len(call.args) != 3:
            continue
        ends = [(on_device(place, each), each) for each in call.args[:2]]
        if not any(known is not None for known, _ in ends):
            continue
        low, high = (known[0] if known is not None else place.text(each) for known, each in ends)
        rest = "".join(f", {place.text(each)}" for each in (call.args[2], *call.keywords))
        there = f"torch.linspace(0, 1{rest}) *"
        text = f"{there} {bracketed(high)}" if low == "0" else f"{low} + {there} ({high} - {bracketed(low)})"
        found.append(place.source.replace(call, f"({text})" if binds_tighter(place.source, call) else text))
    return found


def _parts(call: ast.Call) -> tuple[ast.expr | None, list[ast.expr | ast.keyword]]:
    """What a tensor is filled with, and the rest of what its maker is given."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(o.arg is None for o in call.keywords):
        return None, []
    named = [option for option in call.keywords if option.arg == "fill_value"]
    value = named[0].value if named else call.args[1] if len(call.args) == 2 else None
    rest: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    return value, [n for n in rest if n is not value and n not in named]


def on_device(place: Place, node: ast.expr) -> tuple[str, str] | None:
    """An expression as one of the device, and whether its number was float, int or bool, or "" where nobody knows.

    None where it has nothing of the device, or something that only the host does.
    """
    found = _there(place, node)
    return found[:2] if found is not None and found[2] else None


def _there(place: Place, node: ast.expr) -> tuple[str, str, bool] | None:
    """The text, the kind, and whether there is something of the device in it."""
    if isinstance(node, ast.BinOp):
        one, other = _there(place, node.left), _there(place, node.right)
        if one is None or other is None:
            return None
        kinds = {one[1], other[1]}
        kind = "float" if "float" in kinds or isinstance(node.op, ast.Div) else "int" if kinds == {"int"} else ""
        compound = ast.BinOp, ast.UnaryOp
        parts = ((one[0], node.left), (other[0], node.right))
        left, right = (f"({text})" if isinstance(part, compound) else text for text, part in parts)
        sign = _SIGNS.get(type(node.op), "")
        return (f"{left} {sign} {right}", kind, one[2] or other[2]) if sign else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _there(place, node.operand)
        bracketed = isinstance(node.operand, (ast.BinOp, ast.UnaryOp))
        return (f"-({inner[0]})" if bracketed else f"-{inner[0]}", *inner[1:]) if inner is not None else None
    if isinstance(node, ast.Constant):
        kind = type(node.value).__name__
        return (place.text(node), kind, False) if kind in ("float", "int", "bool") else None
    if isinstance(node, ast.Call):
        return _read(place, node) or _computed(place, node)
    if isinstance(node, ast.Name) and (form := place.tensors.get(node.id)) is not None:
        if form.shape or form.device == "cpu":
            return None
        return _detached(place, node), _kind(str(form.dtype)), True
    if isinstance(node, ast.Name) and isinstance(held := place.space.get(node.id), torch.Tensor):
        there = not place.is_local(node.id) and held.dim() == 0 and held.device.type != "cpu"
        text = _detached(place, node) if held.requires_grad else node.id
        return (text, _kind(str(held.dtype)), True) if there else None  # one that is outside
    return (place.text(node), "", False) if is_number(node) or is_given(place, node) else None


def _read(place: Place, call: ast.Call) -> tuple[str, str, bool] | None:
    """A call that reads a number of the device."""
    seen = READ.search(place.failure.message)
    if called(call) == "item" and isinstance(call.func, ast.Attribute) and not call.args:
        return _detached(place, call.func.value), _kind(seen["dtype"]) if seen is not None else "", True
    if not isinstance(call.func, ast.Name) or called(call) not in ("float", "int") or len(call.args) != 1:
        return None
    inner = _there(place, call.args[0])
    if inner is None and seen is not None:
        inner = _detached(place, call.args[0]), _kind(seen["dtype"]), True
    if inner is None or not inner[2]:
        return None
    whole = called(call) == "int" and inner[1] != "int"
    text = inner[0] if not isinstance(call.args[0], (ast.BinOp, ast.UnaryOp)) or not whole else f"({inner[0]})"
    return f"{text}.long()" if whole else text, called(call), True


def _computed(place: Place, call: ast.Call) -> tuple[str, str, bool] | None:
    """``max(s, 1e-3)``, ``math.exp(s)`` and ``s.clamp(min=1e-3)`` of a number of the device."""
    of_math = path_of(call.func) == f"math.{called(call)}"
    method = call.func if called(call) in _STAY and not of_math else None
    if isinstance(method, ast.Attribute) and all(map(is_number, _given(call))):
        inner = _there(place, method.value)
        return (place.text(call), inner[1], True) if inner is not None and inner[2] else None
    if call.keywords or not call.args or path_of(call.func).partition(".")[0] in place.space.keys() - {"math"}:
        return None
    parts = [_there(place, each) for each in call.args]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts):
        return None
    if not any(each[2] for each in known):  # ``math.sqrt(2 * math.pi)`` stays a number of the host's
        return (place.text(call), "float", False) if of_math else None
    kinds = {each[1] for each in known}
    name, kind = called(call), kinds.pop() if len(kinds) == 1 else ""
    if isinstance(call.func, ast.Name) and name in ("max", "min") and len(known) == 2:
        one, other = sorted(known, key=lambda each: not each[2])
        if other[2]:
            return f"torch.{name}imum({one[0]}, {other[0]})", kind, True
        text = one[0] if isinstance(ast.parse(one[0], mode="eval").body, _ONE) else f"({one[0]})"
        return f"{text}.clamp({'min' if name == 'max' else 'max'}={other[0]})", kind, True
    if of_math and name in _OF_TORCH and len(known) == 1:
        return f"torch.{name}({known[0][0]})", "float", True
    return None


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(option.value for option in call.keywords)]


def _kind(dtype: str) -> str:
    """The type of Python's that a number of a tensor has."""
    held = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(held, torch.dtype) or held.is_complex:
        return ""
    return "float" if held.is_floating_point else "bool" if held is torch.bool else "int"


def _detached(place: Place, node: ast.expr) -> str:
    text = place.source.bracketed(node)
    known = text.endswith(".detach()") or (isinstance(node, ast.Name) and _is_detached(place, node.id))
    return text if known or not place.trains else f"{text}.detach()"


def _is_detached(place: Place, name: str) -> bool:
    """Whether all that gives a name its value has no gradients."""
    made = list(_values(place, name))
    return bool(made) and all(place.text(each).endswith(".detach()") for each in made)


def _values(place: Place, name: str) -> Iterator[ast.expr]:
    function = place.source.function_of(place.statement)
    for node in ast.walk(function) if function is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.Assign):
                yield node.value
            elif isinstance(target, ast.Tuple) and isinstance(node, ast.Assign):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else []
                for part, value in zip(target.elts, values, strict=False):
                    if isinstance(part, ast.Name) and part.id == name:
                        yield value


def taken_as_it_is(place: Place, node: ast.expr, name: str) -> list[Edit]:
    """What makes a tensor of a name that was a number and is a tensor now: ``torch.tensor(s, device=d)`` copies it.

    ``node`` is what the name is given, as the user has it.
    """
    function = place.source.function_of(place.statement)
    every = list(ast.walk(function)) if function is not None else []
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    there = on_device(place, node)
    if len(stores) != 1 or there is None:
        return []
    found = []
    for call in (n for n in every if isinstance(n, ast.Call) and n not in place.gone):
        options = {option.arg: place.text(option.value) for option in call.keywords}
        given = call.args[0] if len(call.args) == 1 else None
        if not isinstance(given, ast.Name) or given.id != name or options.keys() - {"device", "dtype"}:
            continue
        own = isinstance(call.func, ast.Attribute) and called(call) == "new_tensor"
        if not own and path_of(call.func) not in ("torch.tensor", "torch.as_tensor"):
            continue
        like = place.text(call.func.value) if own and isinstance(call.func, ast.Attribute) else ""
        if not (kind := options.get("dtype") or (f"{like}.dtype" if own else _default(there[1]))):
            continue
        device = options.get("device") or (f"{like}.device" if own else "")
        to = ", ".join([*([device] if device else []), kind])
        found.append(place.source.replace(call, f"{name}.to({to}, copy=True)"))
    return found


def default_for(place: Place, node: ast.Call) -> str:
    """The type that ``torch.tensor(x.item())`` has, where it is not the one of ``x``; "" where it is."""
    seen, there = READ.search(place.failure.message), on_device(place, node)
    kind = _default(there[1]) if there is not None else ""
    return kind if seen is not None and kind != f"torch.{seen['dtype']}" else ""


def _default(kind: str) -> str:
    """The type of a tensor that is made of a number of Python's."""
    return {"float": str(torch.get_default_dtype()), "int": "torch.int64", "bool": "torch.bool"}.get(kind, "")
