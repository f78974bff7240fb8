"""Advice for picked rows that are compared with each other, or of which one is taken: zeros would take part in that."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.expressions.picks.shapes import PER_ROW, form_of
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called, integer, renamed

_PAIRS = ("cdist", "matmul", "mm", "outer", "cosine_similarity", "pairwise_distance")
_TAKES = {"min": "inf", "amin": "inf", "argmin": "inf", "max": "-inf", "amax": "-inf", "argmax": "-inf"}
_TAKES |= {"softmax": "-inf", "log_softmax": "-inf", "logsumexp": "-inf"}


def rows_that_meet(place: Place) -> str:
    """``pos = x[m]`` before ``torch.cdist(pos, neg).min()``, and before ``pos.min()``."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "dynamic-shape" or not isinstance(node, ast.Assign) or function is None:
        return ""
    pick = _pick(node)
    if pick is None:
        return ""
    name, x, mask = pick[0], place.text(pick[1].value), place.source.bracketed(pick[1].slice)
    if told := _of_a_loss(place, function, name, pick[1]):
        return told
    picks = dict(each for n in ast.walk(function) if isinstance(n, ast.Assign) for each in _named(n))
    for each in (n for n in ast.walk(function) if isinstance(n, ast.expr) and n.lineno > node.lineno):
        sides = _sides(each)
        both = [bool(names_in(side) & picks.keys()) for side in sides]
        if any(name in names_in(side) for side in sides) and (all(both) or _is_of_pairs(each)):
            return _of_pairs(place, each, sides, picks)
        taken = _taken(place, each, name)
        if taken:
            return (
                f"keep all of `{x}`, and {_TAKES[taken]} where `{mask}` leaves it out, before `{taken}`: "
                f"`{name} = {x}.masked_fill(~{mask}, {_TAKES[taken].replace('inf', 'torch.inf')})`, with "
                f"`~{mask}[:, None]` where these are rows"
            )
    return ""


def _of_a_loss(place: Place, function: Function, name: str, pick: ast.Subscript) -> str:
    """``F.cross_entropy(active, gold)`` of scores and labels that were picked: a label of -100 leaves its row out."""
    own = [n for n in ast.walk(function) if isinstance(n, ast.Call) and called(n) in PER_ROW and len(n.args) == 2]
    loss = next((n for n in own if name in map(path_of, n.args)), None)
    if loss is None or any(option.arg == "ignore_index" for option in loss.keywords):
        return ""
    form, x, mask = form_of(place, pick.slice), place.source.bracketed(pick.value), place.text(pick.slice)
    many = form is None or len(form.shape) > 1
    text = f"{x}{'.flatten(0, -2)' * many}"
    if path_of(loss.args[1]) == name:
        text = f"torch.where({mask}, {place.text(pick.value)}, -100){'.flatten()' * many}"
    return (
        f"keep all rows: `{name} = {text}`, as `{called(loss)}` leaves those out whose label is -100; a mean of what "
        f"else is made of them divides a sum by `{place.source.bracketed(pick.slice)}.sum()`"
    )


def _pick(node: ast.Assign) -> tuple[str, ast.Subscript] | None:
    """``pos`` and ``x[m]`` of ``pos = x[m]``, where the index is a name or a condition."""
    target, value = node.targets[0], node.value
    conditions = (ast.Name, ast.Compare, ast.UnaryOp)
    if not isinstance(target, ast.Name) or not isinstance(value, ast.Subscript):
        return None
    return (target.id, value) if isinstance(value.slice, conditions) else None


def _named(node: ast.Assign) -> Iterator[tuple[str, ast.Subscript]]:
    if (pick := _pick(node)) is not None:
        yield pick


def _sides(node: ast.expr) -> list[ast.expr]:
    """The two whose rows meet in ``torch.cdist(a, b)`` and ``a @ b.T``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return [node.left, node.right]
    plain = isinstance(node, ast.Call) and called(node) in _PAIRS and len(node.args) == 2
    return list(node.args) if plain and isinstance(node, ast.Call) else []


def _is_of_pairs(node: ast.expr) -> bool:
    """Whether a call compares all rows with all, whatever they are."""
    return isinstance(node, ast.Call) and called(node) == "cdist"


def _taken(place: Place, node: ast.expr, name: str) -> str:
    """By what one of those that were picked is taken, and not one in each of them."""
    if not isinstance(node, ast.Call) or called(node) not in _TAKES or not isinstance(node.func, ast.Attribute):
        return ""
    given, form = [node.func.value, *node.args[:1]], place.tensors.get(name)
    dims = [integer(n) or 0 for n in (*node.args, *(o.value for o in node.keywords if o.arg == "dim"))]
    size = len(form.shape) if form is not None else 1
    each = any(dim > 0 or dim + size in range(1, size) for dim in dims)
    return called(node) if name in map(path_of, given) and not each else ""


def _of_pairs(place: Place, pairs: ast.expr, sides: list[ast.expr], picks: dict[str, ast.Subscript]) -> str:
    """That all rows meet all, and which of the pairs count."""
    text, masks = place.text(pairs), list[str]()
    for side, index in zip(sides, ("[:, None]", "[None, :]"), strict=True):
        names = sorted(names_in(side) & picks.keys())
        if len(names) > 1:
            return ""
        for name in names:
            pick = picks[name]
            text = renamed(text, {name: place.source.bracketed(pick.value)})
            masks.append(f"{place.source.bracketed(pick.slice)}{index}")
    count = " & ".join(masks)
    return (
        f"all rows meet all, `{text}`, and of the pairs those count that `there = {count}` marks: "
        "`.masked_fill(~there, torch.inf)` behind it before a minimum, `-torch.inf` before a maximum or a softmax, 0 "
        "before a sum, which a mean divides by `there.sum()`"
    )
