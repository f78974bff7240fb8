"""Advice for what the host decides before anything is asked of the device: ``if random() < eps: return action``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import names_in, within
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import body_of
from paramgraph_kit.rewrite.source.place import Place

_CODES = ("branch-frozen", "host-counter", "host-random")


def left_before_the_launch(place: Place) -> str:
    """The first lines of a function, which may return what the host draws, and count on the way."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in _CODES or function is None:
        return ""
    order = list(body_of(function))
    last = next((n for n, node in enumerate(order) if isinstance(node, ast.If) and _draws_a_result(node)), -1)
    before = order[: last + 1]
    while before and isinstance(before[0], ast.Expr) and isinstance(before[0].value, ast.Constant):
        before = before[1:]  # what documents it
    if not before or len(order) == last + 1 or any(_asks_the_device(place, node) for node in before):
        return ""
    inside = [node for node in before if place.statement in within(node)]
    if not inside:
        return ""
    lines = f"lines {before[0].lineno} to {before[-1].end_lineno}"
    if inside[0] is not before[-1]:
        return f"goes with {lines}, which belong before the launch together"
    return (
        f"the host decides, and draws what is returned: take {lines} out of the function, to before the launch, and "
        "launch where they have not returned"
    )


def _draws_a_result(node: ast.If) -> bool:
    returns = any(isinstance(n, ast.Return) for part in node.body for n in within(part))
    return returns and (draws(node.test) or any(draws(n) for n in ast.walk(node) if isinstance(n, ast.expr)))


def _asks_the_device(place: Place, node: ast.stmt) -> bool:
    read = names_in(node)
    return bool(read & ({*place.tensors} | {*place.seen})) or any(name in place.called for name in read)
