"""Advice for a number that is one of several by what the host counts: picked in a branch, in a table, by a method."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.asks.moving_slices import found_before
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, assigned, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_number, lines_of

_HOSTS = ("min", "max", "int", "float", "len", "abs", "round", "math")


def is_chosen(place: Place, value: ast.expr) -> bool:
    """Whether it is one of several numbers that the host has: ``0.5 if n < 4 else 0.05``, ``self.rates[n]``."""
    if isinstance(value, ast.IfExp):
        return all(_is_number(place, each) or is_chosen(place, each) for each in (value.body, value.orelse))
    held = place.value(path_of(value.value)) if isinstance(value, ast.Subscript) else None
    every = [*held.values()] if isinstance(held, dict) else [*held] if isinstance(held, (list, tuple)) else []
    return bool(every) and all(type(each) in (int, float) for each in every)


def made_in_branches(place: Place) -> str:
    """``if n < 4: rate = 0.5`` and ``else: rate = 0.05`` above the line: these lines stay what they are, elsewhere."""
    function, node = place.source.function_of(place.statement), place.statement
    if place.failure.code != "scalar-frozen" or function is None or node not in function.body:
        return ""
    above, given_there = function.body[: function.body.index(node)], {*arguments_of(function)}
    for name in sorted((names_in(node) & locals_of(function)) - given_there):
        giving = [n for part in above for n in within(part) if isinstance(n, ast.Assign) and _gives(n, name)]
        tops = [part for part in above if any(n in giving for n in within(part))]
        nodes = [n for part in tops for n in within(part)]
        plain = all(isinstance(n, (ast.If, ast.Assign)) for n in nodes if isinstance(n, ast.stmt))
        numbers = all(_is_number(place, n.value) or is_chosen(place, n.value) for n in giving)
        asked = [(names_in(n.test) & locals_of(function)) - given_there for n in nodes if isinstance(n, ast.If)]
        if len(giving) < 2 or not plain or not numbers or not asked or any(asked):
            continue
        given, made = fresh(f"{name}_in", place.taken), lines_of(tops)
        what = f"{made}, by which the host gives `{name}` a number, belong{'' if made.startswith('lines') else 's'}"
        return (
            f"{what} before each launch: once `{given} = {zeros_for(place)}`, before each launch "
            f"that and `{given}.fill_({name})`, here `{given}` for `{name}`"
        )
    return ""


def found_by_a_method(place: Place) -> str:
    """``self.rate() * x``, where that computes a number of what the host has: it is asked before each launch."""
    if place.failure.code != "scalar-frozen":
        return ""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, Function)]
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call) and not n.args and not n.keywords):
        named = [n for n in every if n.name == called(call)]
        if len(named) == 1 and computes_a_number(place, named[0]) and path_of(call.func):
            given = fresh(f"{called(call).strip('_')}_in", place.taken)
            return found_before(given, place.text(call), "", place, f"here `{given}` for `{place.text(call)}`")
    return ""


def computes_a_number(place: Place, function: Function) -> bool:
    """Whether all that a function reads are numbers of the host's, and nothing of the device's."""
    nodes = [n for part in function.body for n in within(part)]
    reads = (n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load))
    apart = (locals_of(function) | {*_HOSTS}) - {"self"}
    others = (n for n in reads if path_of(n) and path_of(n).partition(".")[0] not in apart)
    paths = {path_of(n) for n in others} - {"self"}
    returns = [n for n in nodes if isinstance(n, ast.Return)]
    known = all(type(place.value(p)) in (int, float, bool, list, tuple) or _is_of_a_class(place, p) for p in paths)
    return bool(returns) and known and all(n.value is not None for n in returns)


def is_a_property(place: Place, path: str) -> bool:
    """``self.temperature``, where a property of the file's computes that of numbers that the host has."""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == path.rpartition(".")[2]]
    made = any(path_of(each) == "property" for n in every for each in n.decorator_list)
    return len(every) == 1 and made and computes_a_number(place, every[0])


def _gives(node: ast.Assign, name: str) -> bool:
    return len(node.targets) == 1 and path_of(node.targets[0]) == name and isinstance(node.targets[0], ast.Name)


def _is_number(place: Place, value: ast.expr) -> bool:
    path = path_of(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""
    return is_number(value) or type(place.value(path)) in (int, float) or _is_of_a_class(place, path)


def _is_of_a_class(place: Place, path: str) -> bool:
    """Whether the body of a class gives an attribute a number: ``fast = 0.5`` of ``self.fast``."""
    name = path.removeprefix("self.")
    every = [n for c in ast.walk(place.source.tree) if isinstance(c, ast.ClassDef) for n in c.body]
    pairs = [pair for n in every for pair in assigned(n)]
    pairs += [(n.target, n.value) for n in every if isinstance(n, ast.AnnAssign) and n.value is not None]
    values = [value for target, value in pairs if isinstance(target, ast.Name) and target.id == name != path]
    return bool(values) and all(map(is_number, values))
