"""Advice for a helper that the host alone runs, and that gives a number: ``n = int(pacing.step() * len(x))``."""

from __future__ import annotations

import ast
from types import FunctionType

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called
from paramgraph_kit.rewrite.source.reached_as import class_of

_CODES = ("branch-frozen", "host-counter")
_HOST = frozenset("min max int float bool round abs len pow sum".split())  # noqa: SIM905
_MODULES = ("math", "random", "np", "numpy", "time")


def run_ahead(place: Place) -> str:
    """Where such a helper runs: ahead of each launch, all of it, with the line that asks for its number."""
    helper = place.source.function_of(place.statement)
    if place.failure.code not in _CODES or helper is None or not _gives(helper):
        return ""
    kind = class_of(place.source.tree, helper)
    if helper.name == place.entry and not (kind and isinstance(place.space.get(place.entry), FunctionType)):
        return ""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == helper.name]
    calls = [n for n in every if _may_call(place, n, kind)]
    if len(calls) != 1 or not _is_given_numbers(calls[0]) or not all(map(_is_of_the_host, helper.body)):
        return ""
    call = calls[0]
    above = [*place.source.above(call)]
    statement = next((n for n in above if isinstance(n, ast.stmt)), None)
    if statement is None or isinstance(statement, ast.Expr) or any(isinstance(n, (ast.For, ast.While)) for n in above):
        return ""
    text = place.text(call)
    return (
        f"stays as it is: `{text}` (line {call.lineno}) runs it, which belongs before each launch with all that it "
        f"does: once there, and what it gives is what line {statement.lineno} reads from a tensor"
    )


def _gives(helper: Function) -> bool:
    inside = [n for part in helper.body for n in within(part)]
    return any(isinstance(n, ast.Return) and n.value is not None for n in inside)


def _may_call(place: Place, call: ast.Call, kind: str) -> bool:
    """Whether a call may be one of a helper, as far as it is known whose method it calls: ``opt.step()`` is torch's."""
    if not kind or not isinstance(call.func, ast.Attribute):
        return isinstance(call.func, ast.Name) is not bool(kind)
    owner = place.value(path_of(call.func.value))
    return owner is None or any(each.__name__ == kind for each in type(owner).__mro__)


def _is_given_numbers(call: ast.Call) -> bool:
    """Whether a call is given nothing of the device's: numbers that are written out, and a method's own object."""
    return all(isinstance(n, ast.Constant) for n in (*call.args, *(each.value for each in call.keywords)))


def _is_of_the_host(part: ast.stmt) -> bool:
    """Whether a statement computes with numbers of Python's alone, as far as its calls tell."""
    calls = [n for n in ast.walk(part) if isinstance(n, ast.Call)]
    known = (path_of(n.func) in _HOST or path_of(n.func).partition(".")[0] in _MODULES for n in calls)
    return all(known) and not names_in(part) & {"torch", "F", "nn"}
