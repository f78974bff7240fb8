"""Advice for what the host does with what is given, before anything else is asked of the device.

``if random() < eps: return action``, and ``marks = [f(row) for row in ids.tolist()]``, which is copied back.
"""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.host.left_in_helpers import a_graph_for_its_answers, is_left_by_draws
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import arguments_of, body_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, lines_of

_CODES = ("branch-frozen", "host-counter", "host-random")
_SAME = ("clone", "detach", "contiguous", "long", "int")


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
    if is_left_by_draws(place, before[-1]):  # what counts ahead of it has words of its own
        return a_graph_for_its_answers(place, place.statement)
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


def copied_back(place: Place) -> str:
    """``marks = [f(row) for row in ids.tolist()]``, of which a later line copies something to the device."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("copy-to-cpu", "sync-item") or not isinstance(node, ast.Assign) or function is None:
        return ""
    order = list(body_of(function))
    if node not in order or not _is_of_arguments(function, node):
        return ""
    known, between = stored([node]), list[ast.stmt]([node])
    for later in order[order.index(node) + 1 :]:
        if not names_in(later) & known:
            continue
        if any(names_in(call) & known for call in within(later) if _copies(call)):
            return (
                f"comes of what is given, and line {later.lineno} copies what is made of it back: take "
                f"{lines_of(between)}, with what the host does before for it, out of the function, to before each "
                "launch, where the same can be read of the arguments, and hand over what comes of it as is said there"
            )
        between.append(later)
        known |= stored([later]) | {path_of(n.func.value) for n in within(later) if _writes(n)}  # type: ignore[attr-defined]
    return ""


def _is_of_arguments(function: Function, node: ast.stmt) -> bool:
    """Whether all that a statement reads is an argument, or a copy of one."""
    arguments, copies = {*arguments_of(function)} - {"self"}, dict[str, str]()
    for made in (n for n in body_of(function) if isinstance(n, ast.Assign) and n.lineno < node.lineno):
        value = made.value.func if isinstance(made.value, ast.Call) and called(made.value) in _SAME else made.value
        root = path_of(value.value if isinstance(value, ast.Attribute) and value is not made.value else value)
        copies |= dict.fromkeys(stored([made]), root)
    read = names_in(node) & (arguments | copies.keys())
    return bool(read) and all(copies.get(name, name) in arguments for name in read)


def _copies(node: ast.AST) -> bool:
    """Whether something is a copy to the device."""
    if not isinstance(node, ast.Call):
        return False
    return called(node) in ("to", "cuda") or any(option.arg == "device" for option in node.keywords)


def _writes(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
