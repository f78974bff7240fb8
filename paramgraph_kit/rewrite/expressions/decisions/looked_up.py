"""What a branch looks up at a place that its test makes sure of, ``table[i] if i >= 0 else last``, in any case."""

from __future__ import annotations

import ast
from dataclasses import replace

import torch

from paramgraph_kit.rewrite.expressions.decisions.hosted import is_given
from paramgraph_kit.rewrite.source.edits import path_of
from paramgraph_kit.rewrite.source.place import Form, Place, is_number
from paramgraph_kit.rewrite.source.pure import is_guarded, kept_finite, may_run

_ONE_TRUTH = "_local_scalar_dense of bool[]"


def may_look_up(place: Place, node: ast.expr, branch: ast.IfExp | ast.If) -> bool:
    """Whether an expression may be computed although its branch is not taken, then at the first place if need be."""
    if may_run(place, node, branch):
        return True
    kept = tuple(place.text(each) for each in _lookups(place, node, branch.test))
    return bool(kept) and may_run(replace(place, lent=(*place.lent, *kept)), node, branch)


def text_where(place: Place, node: ast.expr, test: ast.expr, condition: str, *, taken: bool) -> str:
    """The expression whose lookups are those of place 0 where it is not taken, and finite as others are."""
    text = kept_finite(place, node, test, condition, taken=taken)
    for each in _lookups(place, node, test):
        at = place.text(each.slice)
        kept = f"torch.where({condition}, {at}, 0)" if taken else f"torch.where({condition}, 0, {at})"
        text = text.replace(place.text(each), f"{place.text(each.value)}[{kept}.reshape(1)][0]")
    return text


def _lookups(place: Place, node: ast.expr, test: ast.expr) -> list[ast.Subscript]:
    """``table[i]`` of tensors of the device, whose ``i`` is one whole number of the device's that the test asks."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)]
    kept = (n for n in found if is_guarded(test, n, place) and _has_a_first(place, n.value))
    return [n for n in kept if _is_one(place, n.slice) or _is_asked_alone(place, n.slice, test)]


def _is_asked_alone(place: Place, index: ast.expr, test: ast.expr) -> bool:
    """``i >= 0`` with a number, which was read as one truth: then ``i`` is one number, also where no shape is known."""
    if place.form(path_of(index)) is not None or not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return False
    sides = {ast.unparse(each): each for each in (test.left, *test.comparators)}
    others = [each for text, each in sides.items() if text != ast.unparse(index)]
    numbers = all(is_number(each) or is_given(place, each) for each in others)
    return len(others) == 1 and numbers and _ONE_TRUTH in place.failure.message


def _is_one(place: Place, index: ast.expr) -> bool:
    form = place.form(path_of(index))
    whole = form is not None and form.dtype in (torch.int64, torch.int32)
    return form is not None and whole and not form.shape and form.device != "cpu"


def _has_a_first(place: Place, table: ast.expr) -> bool:
    path = path_of(table)
    known = (place.form(path) or place.value(path)) if path else None
    known = known if known is not None else place.attributes.get(path.rpartition(".")[2])
    if not isinstance(known, (torch.Tensor, Form)) or str(known.device).startswith("cpu"):
        return False
    return len(known.shape) > 0 and known.shape[0] > 0
