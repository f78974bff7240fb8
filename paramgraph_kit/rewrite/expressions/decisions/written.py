"""Methods that write a tensor in place, where a condition of the device's holds, or scaled by a tensor."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.source.edits import Edit, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.pure import kept_finite, may_run

_SCALES = {"add": "alpha", "sub": "alpha", "addcdiv": "value", "addcmul": "value"}


def scaled(place: Place) -> list[Edit]:
    """``a.add_(b, alpha=t)`` with a tensor ``t`` becomes ``a.add_(b * t)``; ``addcdiv_(b, c, value=t)`` is as that."""
    calls = place.calls(*_SCALES, *(f"{name}_" for name in _SCALES))
    found = ((call, _scaled(place, call)) for call in calls)
    return [place.source.replace(call, f"{place.text(call.func)}({given})") for call, given in found if given]


def _scaled(place: Place, call: ast.Call) -> str:
    """What such a call is given where a tensor scales its first argument; "" where none does."""
    name = _SCALES.get(called(call).removesuffix("_"), "")
    by = next((option.value for option in call.keywords if option.arg == name), None)
    return "" if by is None or is_given(place, by) else scaled_by(place, call, by)


def scaled_by(place: Place, call: ast.Call, by: ast.expr) -> str:
    """What is given to such a call, which ``by`` scales, where that is a tensor; "" of another call."""
    many = {"alpha": 1, "value": 2}.get(_SCALES.get(called(call).removesuffix("_"), ""))
    if len(call.keywords) != 1 or len(call.args) != many:
        return ""
    if isinstance(by, ast.Call) and not by.keywords and called(by) in ("float", "item"):  # it need not be read
        by = by.args[0] if by.args else by.func.value if isinstance(by.func, ast.Attribute) else by
    first = f"{place.source.bracketed(call.args[0])} * {place.source.bracketed(by)}"
    return ", ".join([first, *(place.text(each) for each in call.args[1:])])


def written_where(place: Place, part: ast.Expr, node: ast.If, test: str) -> str:
    """``x.copy_(v)`` where a condition holds, or ""."""
    call = part.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    if not path_of(call.func.value):
        return _written_in_turn(place, call, node, test)
    x, name, given = place.text(call.func.value), call.func.attr, [*call.args, *(o.value for o in call.keywords)]
    if not all(may_run(place, each, node) for each in given):
        return ""
    if name == "zero_" and not given:
        return f"{x}.masked_fill_({test}, 0)"
    scales = any(names_in(option.value) & place.tensors.keys() for option in call.keywords)
    by = _scaled(place, call) if scales else ""
    if name in _COMPUTED:
        made = f"({by})" if by else place.text(call).removeprefix(f"{x}.{name}")
        return f"{x}.copy_(torch.where({test}, {x}.{name[:-1]}{made}, {x}))"
    if by:
        return f"{x}.{name}(torch.where({test}, {by}, 0))"
    if len(call.args) != 1 or call.keywords:
        return ""
    value = call.args[0]
    taken = kept_finite(place, value, node.test, test, taken=True)
    if name in ("copy_", "fill_"):
        return f"{x}.copy_(torch.where({test}, {taken}, {x}))"
    if name in _IN_PLACE:
        return f"{x}.{name}(torch.where({test}, {taken}, {_IN_PLACE[name]}))"
    return ""


def _written_in_turn(place: Place, call: ast.Call, node: ast.If, test: str) -> str:
    """``x.mul_(0.9).add_(v)`` as ``x.copy_(torch.where(c, x.mul(0.9).add(v), x))``, or ""."""
    made, of = "", call
    while isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and of.func.attr in {*_IN_PLACE, *_COMPUTED}:
        if not all(may_run(place, each, node) for each in (*of.args, *(o.value for o in of.keywords))):
            return ""
        made = f".{of.func.attr[:-1]}({', '.join(map(place.text, (*of.args, *of.keywords)))}){made}"
        of = of.func.value  # type: ignore[assignment]
    x = place.text(of) if path_of(of) else ""
    return f"{x}.copy_(torch.where({test}, {x}{made}, {x}))" if x and made else ""


_IN_PLACE = {"add_": "0", "sub_": "0", "mul_": "1", "div_": "1"}
_COMPUTED = frozenset(
    """clamp_ clamp_min_ clamp_max_ clip_ nan_to_num_ neg_ abs_ sign_ lerp_ addcmul_ addcdiv_ masked_fill_ round_
    tanh_ sigmoid_""".split()  # noqa: SIM905
)
