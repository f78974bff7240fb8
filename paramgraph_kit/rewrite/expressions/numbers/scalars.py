"""Operations that take a number of Python's, where the device has found it: the same by others, that take tensors."""

from __future__ import annotations

import ast
from collections.abc import Callable

from paramgraph_kit.rewrite.expressions.numbers.filled import on_device
from paramgraph_kit.rewrite.expressions.picks.masks import bracketed
from paramgraph_kit.rewrite.source.edits import Edit, path_of
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, integer

_SCALED = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}


def take_a_tensor(place: Place) -> list[Edit]:
    """``x.masked_fill(m, s)`` becomes ``torch.where(m, s, x)``, and ``F.leaky_relu(x, s)`` a choice as well."""
    found = []
    for call in place.calls(*_AS, *(f"{name}_" for name in _AS)):
        if any(isinstance(each, ast.Starred) for each in call.args) or any(o.arg is None for o in call.keywords):
            continue
        text = _AS[called(call).removesuffix("_")](place, call)
        if text and called(call).endswith("_"):
            text = f"{_tensor(place, call)}.copy_({text})" if _is_method(call) and _named(place, call) else ""
        if text:
            inner = binds_tighter(place.source, call) and not text.endswith(")")
            found.append(place.source.replace(call, f"({text})" if inner else text))
    return found


def _is_method(call: ast.Call) -> bool:
    path = path_of(call.func)
    return isinstance(call.func, ast.Attribute) and path.partition(".")[0] not in ("torch", "F", "nn")


def _tensor(place: Place, call: ast.Call) -> str:
    """The tensor that a call computes with, so that something can follow."""
    if _is_method(call) and isinstance(call.func, ast.Attribute):
        return place.source.bracketed(call.func.value)
    return place.source.bracketed(call.args[0]) if call.args else ""


def _named(place: Place, call: ast.Call) -> str:
    """The same where it may be written twice, or ""."""
    x = call.func.value if _is_method(call) and isinstance(call.func, ast.Attribute) else call.args[0]
    return _tensor(place, call) if isinstance(x, (ast.Name, ast.Attribute)) else ""


def _given(call: ast.Call, number: int, name: str) -> ast.expr | None:
    """What a call is given behind its tensor, by its place or its name."""
    named = [option.value for option in call.keywords if option.arg == name]
    args = call.args if _is_method(call) else call.args[1:]
    return named[0] if named else args[number] if len(args) > number else None


def _known(call: ast.Call, *names: str) -> bool:
    """Whether a call has no other options."""
    return {option.arg for option in call.keywords} <= set(names) and bool(_is_method(call) or call.args)


def _mask(place: Place, call: ast.Call) -> str:
    mask, value = _given(call, 0, "mask"), _given(call, 1, "value")
    there = on_device(place, value) if value is not None else None
    if mask is None or there is None or not _known(call, "mask", "value"):
        return ""
    x = _tensor(place, call)
    return f"torch.where({place.text(mask)}, {there[0]}, {x})"


def _clamp(place: Place, call: ast.Call) -> str:
    """Both ends at once have to be numbers, or tensors; of an end alone it may be either."""
    ends = {"min": _given(call, 0, "min"), "max": _given(call, 1, "max")}
    if any(each is None for each in ends.values()) or not _known(call, "min", "max"):
        return ""
    there = {name: on_device(place, each) for name, each in ends.items() if each is not None}
    if not any(there.values()):
        return ""
    parts = ((name, known[0] if (known := there[name]) else place.text(each)) for name, each in ends.items() if each)
    return _tensor(place, call) + "".join(f".clamp({name}={text})" for name, text in parts)


def _scaled(place: Place, call: ast.Call) -> str:
    """``torch.add(a, b, alpha=s)`` is ``torch.add(a, b * s)``; methods have a rule of their own."""
    name = called(call)
    by = _given(call, 9, _SCALED[name]) if name in _SCALED else None
    there = on_device(place, by) if by is not None else None
    many = 2 if name in ("add", "sub") else 3
    if there is None or _is_method(call) or len(call.args) != many or not _known(call, _SCALED[name]):
        return ""
    first = f"{place.source.bracketed(call.args[1])} * {bracketed(there[0])}"
    rest = "".join(f", {place.text(each)}" for each in call.args[2:])
    return f"{place.text(call.func)}({place.text(call.args[0])}, {first}{rest})"


def _threshold(place: Place, call: ast.Call) -> str:
    limit, value = _given(call, 0, "threshold"), _given(call, 1, "value")
    there = on_device(place, limit) if limit is not None else None
    if there is None or value is None or not _known(call, "threshold", "value"):
        return ""
    x = _named(place, call)
    return f"torch.where({x} <= {there[0]}, {place.text(value)}, {x})" if x else ""


def _leaky(place: Place, call: ast.Call) -> str:
    slope = _given(call, 0, "negative_slope")
    there = on_device(place, slope) if slope is not None else None
    if there is None or not _known(call, "negative_slope"):
        return ""
    x = _named(place, call)
    return f"torch.where({x} > 0, {x}, {x} * {bracketed(there[0])})" if x else ""


def _quantized(place: Place, call: ast.Call) -> str:
    """With a tensor as scale it wants one as zero point."""
    scale, zero = _given(call, 0, "scale"), _given(call, 1, "zero_point")
    there = on_device(place, scale) if scale is not None else None
    if there is None or zero is None or integer(zero) is None or _is_method(call) or len(call.args) != 5:
        return ""
    x, low, high = (place.text(call.args[n]) for n in (0, 3, 4))
    point = f"torch.full((), {place.text(zero)}, dtype=torch.int32, device={place.device})"
    return f"{place.text(call.func)}({x}, {there[0]}, {point}, {low}, {high})"


def _smoothed(place: Place, call: ast.Call) -> str:
    """What ``label_smoothing=s`` does: so much of the loss is that of all classes, in rows that are not left out."""
    scores, classes = call.args if len(call.args) == 2 else (None, None)
    by = _given(call, 9, "label_smoothing")
    there = on_device(place, by) if by is not None else None
    if not isinstance(scores, ast.Name) or not isinstance(classes, ast.Name) or not _known(call, "label_smoothing"):
        return ""
    of, kind = place.tensors.get(scores.id), place.tensors.get(classes.id)
    if there is None or of is None or len(of.shape) < 2 or kind is None or kind.dtype.is_floating_point:
        return ""
    kept, s = f"({classes.id} != -100)", bracketed(there[0])
    every = f"torch.where({kept}, -{scores.id}.log_softmax(1).mean(1), 0).sum() / {kept}.sum()"
    # Without any a score of -inf does not matter: it is no number times zero.
    return (
        f"((1 - {s}) * {place.text(call.func)}({scores.id}, {classes.id}) + torch.where({s} > 0, {s} * {every}, 0.0))"
    )


_AS: dict[str, Callable[[Place, ast.Call], str]] = {
    "masked_fill": _mask,
    "clamp": _clamp,
    "clip": _clamp,
    "hardtanh": _clamp,
    **dict.fromkeys(_SCALED, _scaled),
    "cross_entropy": _smoothed,
    "threshold": _threshold,
    "leaky_relu": _leaky,
    "fake_quantize_per_tensor_affine": _quantized,
}
