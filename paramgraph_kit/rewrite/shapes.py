"""Results of a fixed size in the place of those whose size the values decide."""

from __future__ import annotations

import ast
import math

from paramgraph_kit.rewrite.edits import Edit
from paramgraph_kit.rewrite.place import Place, binds_tighter, called

MASKS = (ast.Name, ast.Compare, ast.Attribute, ast.UnaryOp, ast.BinOp)
PER_ROW = ("cross_entropy", "nll_loss")  # one loss for a row of scores
LOSSES = (*PER_ROW, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")


def reduce_the_whole(place: Place) -> list[Edit]:
    """``(x[mask] - y[mask]).sum()`` and ``.mean()`` become reductions of the whole, with zeros elsewhere."""
    found = []
    for call in place.calls("sum", "mean"):
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if inner is None or call.args or call.keywords:
            continue
        picked = _picked(place, inner)
        if picked is None:
            continue
        mask = place.source.bracketed(picked[0].slice)
        text = f"torch.where({place.text(picked[0].slice)}, {_whole(place, inner, picked)}, 0).sum()"
        if called(call) == "mean":
            # What torch.where leaves out must not divide by zero: its gradient would be no number.
            text += f" / {mask}.sum()" + ".clamp(min=1)" * _is_chosen(place, call)
            text = f"({text})" if binds_tighter(place.source, call) else text
        found.append(place.source.replace(call, text))
    return found


def _is_chosen(place: Place, node: ast.AST) -> bool:
    """Whether an expression stands where ``torch.where`` takes it or not."""
    above = place.source.parents.get(node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Call) and called(above) == "where":
            return True
        above = place.source.parents.get(above)
    return False


def weigh_the_whole(place: Place) -> list[Edit]:
    """``F.mse_loss(x[mask], y[mask])`` becomes the losses of all, with zeros elsewhere, summed and divided."""
    for call in place.calls(*LOSSES):
        given = {option.arg: option for option in call.keywords}
        kind = given.get("reduction")
        way = kind.value.value if kind is not None and isinstance(kind.value, ast.Constant) else "mean"
        picked = _picked(place, ast.Tuple(call.args[:2], ast.Load())) if len(call.args) == 2 else None
        if way not in ("sum", "mean") or picked is None or len(picked) != 2 or set(given) - {"reduction"}:
            continue
        mask, first = place.text(picked[0].slice), place.text(picked[0].value)
        one, all_of = place.tensors.get(mask), place.tensors.get(first)
        if one is None or all_of is None:
            continue  # how many dimensions they have decides how the mask is spread
        more = len(all_of.shape) - len(one.shape) - (called(call) in PER_ROW)
        spread = mask + (f"[..., {', '.join(['None'] * more)}]" if more else "")
        values = ", ".join(place.text(each.value) for each in picked)
        text = f'torch.where({spread}, {place.text(call.func)}({values}, reduction="none"), 0).sum()'
        if way == "mean":
            text += f" / {mask}.sum()" + (f" / {math.prod(all_of.shape[-more:])}" if more else "")
            text = f"({text})" if binds_tighter(place.source, call) else text
        return [place.source.replace(call, text)]
    return []


def _picked(place: Place, node: ast.AST) -> list[ast.Subscript] | None:
    """What is picked below a node, all by one mask; None where it is not."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Subscript)]
    masks = {place.text(each.slice) for each in found}
    if len(masks) != 1 or not all(isinstance(each.slice, MASKS) for each in found):
        return None
    return found


def _whole(place: Place, node: ast.expr, picked: list[ast.Subscript]) -> str:
    """An expression without what picks a part of its tensors."""
    text = place.text(node)
    for each in picked:
        text = text.replace(place.text(each), place.source.bracketed(each.value))
    return text


def count_by_scatter(place: Place) -> list[Edit]:
    """``torch.bincount(x, minlength=n)`` becomes an addition at indices, whose result has ``n`` elements."""
    found = []
    for call in place.calls("bincount"):
        given = {option.arg: place.text(option.value) for option in call.keywords}
        if len(call.args) != 1 or set(given) != {"minlength"}:
            continue
        x = place.source.bracketed(call.args[0])
        zeros = f"torch.zeros({given['minlength']}, dtype=torch.long, device={x}.device)"
        found.append(place.source.replace(call, f"{zeros}.scatter_add_(0, {x}, torch.ones_like({x}))"))
    return found


def assign_by_where(place: Place) -> list[Edit]:
    """``x[mask] = v`` becomes ``x.copy_(torch.where(mask, v, x))``; ``v[mask]`` there is ``v``."""
    node = place.statement
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Subscript):
        return []
    target, mask = node.targets[0].value, place.text(node.targets[0].slice)
    value = node.value
    if isinstance(value, ast.Subscript) and place.text(value.slice) == mask:
        value = value.value
    elif any(isinstance(each, ast.Subscript) and place.text(each.slice) == mask for each in ast.walk(value)):
        return []
    text = place.text(target)
    return [place.source.replace(node, f"{text}.copy_(torch.where({mask}, {place.text(value)}, {text}))")]
