"""Advice for a loop of as many rounds as the host says, ``for t in range(n)``: a graph has those of its capture."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.expressions.picks.sizes import DRAWN, FACTORIES
from paramgraph_kit.rewrite.source.edits import Function, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

OF_EACH = "a graph for each"
OF_ROUNDS = "is what can be captured, as the host asks in each"


def of_each_round(said: str) -> bool:
    """Whether words tell all that a number of rounds needs."""
    return OF_EACH in said or OF_ROUNDS in said


def rounds_given(place: Place) -> str:
    """That there is a graph for each number of rounds, at the loop and where its function computes with that number."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in ("branch-frozen", "scalar-frozen") or function is None:
        return ""
    loops = [n for part in function.body for n in within(part) if isinstance(n, ast.For)]
    loops = [n for n in loops if (name := _counted_by(n)) and _is_asked_for(place, function, name)]
    if place.failure.code == "branch-frozen":
        loop = place.statement if place.statement in loops else None
        if not isinstance(loop, ast.For):
            return ""
        given = _given(place, function, _counted_by(loop))
        number = given or _counted_by(loop)
        return (
            f"it has as many rounds as `{number}` says, and a graph those of its capture: {OF_EACH} number, "
            f"`graphs[{number}]`, captured when it first comes, and picked so before each launch; this line stays"
        )
    sizes = [n for n in ast.walk(place.statement) if isinstance(n, ast.Call) and called(n) in (*FACTORIES, *DRAWN)]
    sizes = [n for n in sizes if not place.failure.message.startswith(f"{called(n)} ")]
    apart = {part for n in sizes for each in n.args for part in ast.walk(each)}  # no kernel multiplies by a size
    nodes = [n for n in ast.walk(place.statement) if n not in apart]
    read = {n.id for n in nodes if isinstance(n, ast.Name)}
    read |= {place.text(n) for n in nodes if isinstance(n, ast.Attribute)}
    loop = next((n for n in loops if _counted_by(n) in read), None)
    if loop is None:
        return ""
    return f"stays as it is, in {OF_EACH} `{_counted_by(loop)}`, which line {loop.lineno} needs too"


def _counted_by(loop: ast.For) -> str:
    """``n`` of ``for t in range(n)``, or ""."""
    call = loop.iter
    if not isinstance(call, ast.Call) or called(call) != "range" or len(call.args) != 1:
        return ""
    return ast.unparse(call.args[0]) if isinstance(call.args[0], (ast.Name, ast.Attribute)) else ""


def _is_asked_for(place: Place, function: Function, name: str) -> bool:
    """Whether a helper is given that number by the one who calls it, or an object has it."""
    return "." in name or bool(_given(place, function, name))


def _given(place: Place, function: Function, name: str) -> str:
    """What the one call of a helper gives for an argument, where only the host's names are in it."""
    arguments = [*arguments_of(function)]
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    if name not in arguments or len(calls) != 1 or function.name == place.entry:
        return ""
    named = {each.arg: each.value for each in calls[0].keywords}
    at = arguments.index(name) - (arguments[:1] == ["self"] and isinstance(calls[0].func, ast.Attribute))
    value = named.get(name) or (calls[0].args[at] if 0 <= at < len(calls[0].args) else None)
    return place.text(value) if isinstance(value, (ast.Name, ast.Attribute, ast.Call)) else ""
