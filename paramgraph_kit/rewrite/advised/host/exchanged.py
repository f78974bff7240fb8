"""Advice for tensors that the host exchanges by chance ahead of what computes with them: ``a, b = b, a``."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from paramgraph_kit.doctor.observe.compare import ANOTHER
from paramgraph_kit.rewrite.advised.host.drawn_ways import HOST
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, fresh, lines_of


def exchanged(place: Place) -> str:
    """``if random.random() < 0.5: a, b = b, a`` and ``q = self.query(a)``: a tensor says which of them each is."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "host-random" or ANOTHER not in place.failure.message or function is None:
        return ""
    read = names_in(place.statement)
    ahead = [n for n in function.body if isinstance(n, ast.If) and n.lineno < place.statement.lineno]
    for node in reversed(ahead):
        ways = [_given(part) for part in (node.body, node.orelse)]
        if not all(way is not None for way in ways) or not read & {*(ways[0] or ())} or not _draws(place, node.test):
            continue
        first, other = ({**(way or {})} for way in ways)
        if node.orelse and first.keys() != other.keys():
            continue
        return _words(place, function, node, first, other)
    return ""


def _words(place: Place, function: Function, node: ast.If, first: dict[str, str], other: dict[str, str]) -> str:
    name = fresh("flip_in", place.taken)
    is_method = isinstance(place.source.parents.get(function), ast.ClassDef)
    held = f"self.{name}" if is_method else name
    chosen = [f"torch.where({held}, {new}, {other.get(at, at)})" for at, new in first.items()]
    where = f" of the `self` that `{function.name}` has" if is_method else " (a name of the file's)"
    whole = lines_of([node])
    made = f"`{held} = torch.zeros((), dtype=torch.bool, device={place.device})`{where}"
    return (
        f"{whole}, `if {place.text(node.test)}:`, gives others by a draw to what this computes with: once, ahead of "
        f"the warm-up and the capture, {made}, before each launch `{held}.fill_({place.text(node.test)})`, in place of "
        f"{whole} `{', '.join(first)} = {', '.join(chosen)}`, and this line as it is"
    )


def _given(lines: Sequence[ast.stmt]) -> dict[str, str] | None:
    """What each name is given, where one line gives names others' tensors; None where lines do anything else."""
    if not lines:
        return {}
    node = lines[0]
    if len(lines) > 1 or not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target, value = node.targets[0], node.value
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    values = value.elts if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple) else [value]
    if len(targets) != len(values) or not all(isinstance(n, ast.Name) for n in targets):
        return None
    if not all(isinstance(n, ast.Name) or (isinstance(n, ast.Attribute) and path_of(n)) for n in values):
        return None
    return {ast.unparse(t): ast.unparse(v) for t, v in zip(targets, values, strict=True)}


def _draws(place: Place, test: ast.expr) -> bool:
    """Whether a test is a draw of the host's that has nothing else of the function's."""
    calls = [path_of(n.func).partition(".")[0] for n in ast.walk(test) if isinstance(n, ast.Call)]
    return any(each in HOST for each in calls) and not place.local(test) - {"self"}


def computes(place: Place, value: ast.expr) -> list[str]:
    """What modules with weights are given in an expression: computed outside of a graph, these get no gradient."""
    found = dict[str, None]()
    for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
        held = place.value(path_of(call.func))
        if isinstance(held, torch.nn.Module):
            found |= {n: None for each in call.args for n in names_in(each) if place.is_local(n) and n != "self"}
    return [*found]
