"""Losses and functions that take a number of Python's alone, where the device has found it: their formula, written out.

``F.huber_loss(p, y, delta=s)`` wants a number; its formula does not. In a graph a schedule's number is a tensor, too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch

from paramgraph_kit.rewrite.expressions.numbers.filled import on_device
from paramgraph_kit.rewrite.expressions.picks.shapes import form_of
from paramgraph_kit.rewrite.source.edits import Edit, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, fresh

_PLAIN = (ast.Name, ast.Attribute, ast.Constant)
_WIDE = (ast.BinOp, ast.UnaryOp, ast.IfExp)
_SINGLE = 4  # bytes of a number that has no more room to be computed in
_WAYS = {"mean": ".mean()", "sum": ".sum()", "none": ""}


def write_it_out(place: Place) -> list[Edit]:
    """``F.huber_loss(p, y, delta=s)``, ``F.softplus(x, s)``, ``clip_grad_norm_(parameters, s)`` with tensors."""
    found = []
    for call in place.calls(*_AS):
        if any(isinstance(each, ast.Starred) for each in call.args) or any(o.arg is None for o in call.keywords):
            continue
        names, write = _AS[called(call)]
        given = dict(zip(names, call.args, strict=False)) | {str(o.arg): o.value for o in call.keywords}
        if len(call.args) > len(names) or given.keys() - set(names) or not _is_function(place, call):
            continue
        if text := write(place, given):
            alone = isinstance(ast.parse(text, mode="eval").body, (ast.Call, ast.Name))
            text = f"({text})" if binds_tighter(place.source, call) and not alone else text
            found.append(place.source.replace(call, text))
    return found or _drawn(place) or _clipped(place)


def _is_function(place: Place, call: ast.Call) -> bool:
    return path_of(call.func).rpartition(".")[0] in ("F", "torch", "torch.nn.functional", "nn.functional")


def _number(place: Place, given: dict[str, ast.expr], name: str) -> str:
    """What stands for the number, where the device has found it."""
    there = on_device(place, given[name]) if name in given else None
    if there is None:
        return ""
    return there[0] if isinstance(ast.parse(there[0], mode="eval").body, (*_PLAIN, ast.Call)) else f"({there[0]})"


def _way(given: dict[str, ast.expr]) -> str | None:
    """How a loss is reduced, or None where that is not told."""
    way = given.get("reduction", ast.Constant("mean"))
    return _WAYS.get(str(way.value)) if isinstance(way, ast.Constant) else None


def _twice(place: Place, text: str, *nodes: ast.expr) -> tuple[str, str]:
    """A text for its first place and the one for the places behind it: computed once, where it is more than names."""
    if all(isinstance(each, _PLAIN) for each in nodes):
        return text, text
    function = place.source.function_of(place.statement)
    name = fresh("apart", locals_of(function) | place.space.keys() if function is not None else place.space.keys())
    return f"({name} := {text})", name


def _apart(place: Place, given: dict[str, ast.expr]) -> tuple[str, str] | None:
    one, other = given.get("input"), given.get("target")
    if one is None or other is None:
        return None
    text = f"({place.source.bracketed(one)} - {place.source.bracketed(other)}).abs()"
    return _twice(place, text, one, other)


def _huber(place: Place, given: dict[str, ast.expr]) -> str:
    """A part up to ``delta``, of which half is taken away, and the rest of the distance in full."""
    delta, way, apart = _number(place, given, "delta"), _way(given), _apart(place, given)
    if not delta or way is None or apart is None:
        return ""
    first, again = apart
    return f"({first}.clamp(max={_inner(delta)}) * ({again} - 0.5 * {again}.clamp(max={_inner(delta)}))){way}"


def _smooth(place: Place, given: dict[str, ast.expr]) -> str:
    beta, way, apart = _number(place, given, "beta"), _way(given), _apart(place, given)
    if not beta or way is None or apart is None:
        return ""
    first, again = apart
    squares = f"0.5 * {again} ** 2 / torch.where({beta} > 0, {beta}, 1.0)"
    # With none at all it is the distance itself, as torch has it.
    return f"torch.where({first} < {beta}, {squares}, {again} - 0.5 * {beta}){way}"


def _inner(text: str) -> str:
    """What needs no brackets where it is an argument."""
    return text[1:-1] if text[0] == "(" and text[-1] == ")" and ")" not in text[1:-1] else text


def _ranking(place: Place, given: dict[str, ast.expr]) -> str:
    margin, way = _number(place, given, "margin"), _way(given)
    parts = [given.get(name) for name in ("input1", "input2", "target")]
    if not margin or way is None or any(each is None for each in parts):
        return ""
    one, other, sign = (place.source.bracketed(each) for each in parts if each is not None)
    return f"(-{sign} * ({one} - {other}) + {margin}).clamp(min=0){way}"


def _triplet(place: Place, given: dict[str, ast.expr]) -> str:
    margin, way = _number(place, given, "margin"), _way(given)
    parts = [given.get(name) for name in ("anchor", "positive", "negative")]
    if not margin or way is None or any(each is None for each in parts):
        return ""
    anchor, near, far = (place.text(each) for each in parts if each is not None)
    rest = "".join(f", {name}={place.text(given[name])}" for name in ("p", "eps") if name in given)
    apart = [f"torch.nn.functional.pairwise_distance({anchor}, {other}{rest})" for other in (near, far)]
    return f"({apart[0]} - {apart[1]} + {margin}).clamp(min=0){way}"


def _hinge(place: Place, given: dict[str, ast.expr]) -> str:
    margin, way = _number(place, given, "margin"), _way(given)
    x, sign = given.get("input"), given.get("target")
    if not margin or way is None or not isinstance(x, _PLAIN) or not isinstance(sign, _PLAIN):
        return ""
    text, label = place.text(x), place.text(sign)
    # What has neither label has both parts in torch.
    far, near = f"({margin} - {text}).clamp(min=0)", f"torch.where({label} != -1, {text}, 0)"
    return f"(torch.where({label} != 1, {far}, 0) + {near}){way}"


def _softplus(place: Place, given: dict[str, ast.expr]) -> str:
    beta, x = _number(place, given, "beta"), given.get("input")
    forms = [place.tensors.get(name) for name in names_in(x)] if x is not None else []
    if not beta or x is None or any(form is not None and form.dtype.itemsize < _SINGLE for form in forms):
        return ""  # torch multiplies short numbers in float32, where their product is not infinite
    rest = f", threshold={place.text(given['threshold'])}" if "threshold" in given else ""
    return f"torch.nn.functional.softplus({place.source.bracketed(x)} * {beta}{rest}) / {beta}"


def _elu(place: Place, given: dict[str, ast.expr]) -> str:
    alpha, x = _number(place, given, "alpha"), given.get("input")
    if not alpha or not isinstance(x, _PLAIN):
        return ""
    text = place.text(x)  # above zero its exponential may be too large for a number, which a gradient would see
    return f"torch.where({text} > 0, {text}, {alpha} * torch.expm1({text}.clamp(max=0)))"


def _attention(place: Place, given: dict[str, ast.expr]) -> str:
    scale = _number(place, given, "scale")
    if not scale or "query" not in given:
        return ""
    query = f"{place.source.bracketed(given['query'])} * {scale}"
    rest = "".join(f", {name}={place.text(each)}" for name, each in given.items() if name not in ("query", "scale"))
    return f"torch.nn.functional.scaled_dot_product_attention({query}{rest}, scale=1.0)"


def _close(place: Place, given: dict[str, ast.expr]) -> str:
    tolerances = {name: _number(place, given, name) for name in ("rtol", "atol")}
    x, y = given.get("input"), given.get("other")
    if not any(tolerances.values()) or not isinstance(x, _PLAIN) or not isinstance(y, _PLAIN) or "equal_nan" in given:
        return ""
    forms = form_of(place, x), form_of(place, y)
    if any(form is None or not form.dtype.is_floating_point for form in forms):
        return ""  # differences of whole numbers may go around
    known = {"rtol": "1e-05", "atol": "1e-08"}
    r, a = (tolerances[n] or (place.text(given[n]) if n in given else known[n]) for n in ("rtol", "atol"))
    one, other = place.text(x), place.text(y)
    # Infinite ones are close to themselves alone.
    near = f"(({one} - {other}).abs() <= {a} + {r} * {other}.abs())"
    return f"(({one} == {other}) | ({near} & ({one} - {other}).isfinite()))"


def _filled(place: Place, given: dict[str, ast.expr]) -> str:
    there = _number(place, given, "nan")
    x = given.get("input")
    if not there or not isinstance(x, _PLAIN) or given.keys() & {"posinf", "neginf"}:
        return ""
    return f"torch.where({place.text(x)}.isnan(), {there}, {place.text(x)}.nan_to_num())"


_Write = Callable[[Place, dict[str, ast.expr]], str]
_AS: dict[str, tuple[tuple[str, ...], _Write]] = {
    "huber_loss": (("input", "target", "reduction", "delta"), _huber),
    "smooth_l1_loss": (("input", "target", "size_average", "reduce", "reduction", "beta"), _smooth),
    "margin_ranking_loss": (
        ("input1", "input2", "target", "margin", "size_average", "reduce", "reduction"),
        _ranking,
    ),
    "triplet_margin_loss": (("anchor", "positive", "negative", "margin", "p", "eps", "reduction"), _triplet),
    "hinge_embedding_loss": (("input", "target", "margin", "size_average", "reduce", "reduction"), _hinge),
    "softplus": (("input", "beta", "threshold"), _softplus),
    "elu": (("input", "alpha"), _elu),
    "scaled_dot_product_attention": (
        ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
        _attention,
    ),
    "isclose": (("input", "other", "rtol", "atol", "equal_nan"), _close),
    "nan_to_num": (("input", "nan", "posinf", "neginf"), _filled),
}


def _drawn(place: Place) -> list[Edit]:
    """``x.uniform_(-s, s)`` and ``x.normal_(0, s)`` are drawn as they are for one, and scaled."""
    found = []
    for call in place.calls("uniform_", "normal_"):
        known = [on_device(place, each) for each in call.args]
        method = isinstance(call.func, ast.Attribute)
        if call.keywords or len(known) != 2 or not any(known) or not method:  # a mean, or a begin, and how wide it is
            continue
        low, high = (there[0] if there else place.text(each) for there, each in zip(known, call.args, strict=True))
        ends = [f"({t})" if isinstance(e, _WIDE) else t for t, e in zip((low, high), call.args, strict=True)]
        width = high if called(call) == "normal_" or low in ("0", "0.0") else " - ".join(ends[::-1])
        more = "" if low in ("0", "0.0") else f".add_({low})"
        found.append(place.source.replace(call, f"{place.text(call.func)}().mul_({width}){more}"))
    return found


def _clipped(place: Place) -> list[Edit]:
    """``clip_grad_norm_(parameters, s)`` makes a number of ``s``: here is what it computes."""
    node, source = place.statement, place.source
    call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call) or called(call) not in ("clip_grad_norm_", "clip_grad_value_"):
        return []
    options = {str(o.arg): o.value for o in call.keywords}
    limit = "max_norm" if called(call) == "clip_grad_norm_" else "clip_value"
    given = dict(zip(("parameters", limit, "norm_type"), call.args, strict=False)) | options
    most = _number(place, given, limit)
    if not most or "parameters" not in given or given.keys() - {"parameters", limit, "norm_type", "foreach"}:
        return []
    if not isinstance(given["parameters"], (ast.Name, ast.Attribute, ast.Call, ast.List, ast.ListComp)):
        return []
    function = source.function_of(node)
    taken = (locals_of(function) if function is not None else set()) | place.space.keys()
    grads, every = fresh("grads", taken), place.text(given["parameters"])
    one = place.form(every) is not None or isinstance(place.value(every), torch.Tensor)
    every = f"[{every}]" if one else every
    lines = [f"{grads} = [p.grad for p in {every} if p.grad is not None]"]
    if limit == "clip_value":
        lines += [f"for grad in {grads}:", f"    grad.clamp_(-{most}, {most})"]
    else:
        name = fresh("total_norm", taken)
        if isinstance(node, ast.Assign):
            if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
                return []
            name = node.targets[0].id
        kind = f", {place.text(given['norm_type'])}" if "norm_type" in given else ""
        lines += [
            f"{name} = torch.nn.utils.get_total_norm({grads}{kind})",
            f"for grad in {grads}:",
            f"    grad.mul_(({most} / ({name} + 1e-6)).clamp(max=1.0))",
        ]
    return [source.replace(node, f"\n{source.indent(node)}".join(lines))]
