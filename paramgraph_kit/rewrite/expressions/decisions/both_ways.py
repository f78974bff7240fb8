"""Branches whose both ways do the same with another value: ``xs.append(a)`` here and ``xs.append(b)`` there."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device
from paramgraph_kit.rewrite.expressions.decisions.digits_kept import where_of
from paramgraph_kit.rewrite.expressions.decisions.hosted import is_of_the_host
from paramgraph_kit.rewrite.source.edits import Edit
from paramgraph_kit.rewrite.source.place import Place, called, target_of
from paramgraph_kit.rewrite.source.pure import kept_finite, may_run

_TAKE = ("append", "appendleft")


def choose_what_is_given(place: Place) -> list[Edit]:
    """``xs.append(torch.where(c, a, b))``, and the same of an entry: ``table[k] = torch.where(c, a, b)``."""
    node = place.statement
    if not isinstance(node, ast.If) or not node.body:
        return []
    behind = [] if node.orelse else _instead(place, node)
    other = node.orelse[0] if len(node.orelse) == 1 else behind[-1] if behind else None
    if other is None or len(node.body) != 1 + bool(behind):
        return []
    pair = [_given(place, part) for part in (node.body[0], other)]
    if None in pair or pair[0][0] != pair[1][0] or is_of_the_host(place, node.test):  # type: ignore[index]
        return []
    values = [each[1] for each in pair if each is not None]
    if not all(may_run(place, each, node) for each in values):
        return []
    condition = condition_on_device(place, node.test)
    yes, no = (
        kept_finite(place, each, node.test, condition, taken=taken)
        for each, taken in zip(values, (True, False), strict=True)
    )
    head, tail = pair[0][0]  # type: ignore[index]
    text = f"{head}{where_of(place, condition, yes, no)}{tail}"
    return (
        [place.source.without(node), place.source.replace(other, text)]
        if behind
        else [place.source.replace(node, text)]
    )


def add_nothing_instead(place: Place) -> list[Edit]:
    """``sum(w * x.mean() for x, w in zip(xs, ws) if w > 0)`` adds 0 where the condition does not hold."""
    for call in place.calls("sum"):
        listed = call.args[0] if call.args and isinstance(call.func, ast.Name) else None
        if not isinstance(listed, (ast.GeneratorExp, ast.ListComp)) or len(listed.generators) != 1:
            continue
        each = listed.generators[0]
        if len(each.ifs) != 1 or is_of_the_host(place, each.ifs[0]):
            continue
        if not may_run(place, listed.elt, ast.IfExp(each.ifs[0], listed.elt, ast.Constant(0))):
            continue
        condition = condition_on_device(place, each.ifs[0])
        value = kept_finite(place, listed.elt, each.ifs[0], condition, taken=True)
        text = f"torch.where({condition}, {value}, 0) for {place.text(each.target)} in {place.text(each.iter)}"
        return [place.source.replace(listed, f"({text})")]  # the brackets of a call's only argument are the list's
    return []


def _instead(place: Place, node: ast.If) -> list[ast.stmt]:
    """The rest of a round, which ``continue`` leaves out, where it may run all the same until it hands on its value."""
    siblings = place.source.block_of(node)
    rest = siblings[siblings.index(node) + 1 :]
    loop, function = place.source.parents.get(node), place.source.function_of(node)
    if not rest or not isinstance(node.body[-1], ast.Continue) or not isinstance(loop, ast.For) or function is None:
        return []
    own = {n for each in rest for n in ast.walk(each)}
    names = set[str]()
    for each in rest[:-1]:
        target = target_of(each)
        if not isinstance(each, ast.Assign) or not isinstance(target, ast.Name) or not may_run(place, each.value, node):
            return []
        names.add(target.id)
    elsewhere = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id in names and n not in own)
    return [] if any(elsewhere) else rest


def _given(place: Place, part: ast.stmt) -> tuple[tuple[str, str], ast.expr] | None:
    """What stands around the one value that a statement hands on, and that value."""
    call = part.value if isinstance(part, ast.Expr) else None
    if isinstance(call, ast.Call) and called(call) in _TAKE and len(call.args) == 1 and not call.keywords:
        return (f"{place.text(call.func)}(", ")"), call.args[0]
    target = target_of(part)
    if isinstance(target, ast.Subscript) and isinstance(part, ast.Assign):
        return (f"{place.text(target)} = ", ""), part.value
    return None
