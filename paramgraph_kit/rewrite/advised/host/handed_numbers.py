"""Advice for a number of an object's that a step hands to a helper, ``self.leapfrog(q, p, self.eps)``.

The helper's other names are as likely tensors: ``q`` of ``q = q + eps * p`` is no number of the host's.
"""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.advised.host.made_of_numbers import of_what_is_given
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, heads, is_method, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_COMPUTES = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def handed_number(place: Place) -> str:
    """What fills a tensor that the helper is given in place of the one number of the host's that it computes with."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "scalar-frozen" or function is None or function.name in ("", place.entry):
        return ""
    call = _one_call(place, function)
    given = _given(place, function, call) if call is not None else {}
    read = {n.id for n in heads(place.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    numbers = {name: node for name, node in given.items() if name in read and _is_a_number(place, node)}
    if call is None or len(numbers) != 1:
        return ""
    ((name, node),) = numbers.items()
    again = {each for part in function.body for n in within(part) if isinstance(n, ast.stmt) for each in stored([n])}
    if name in again or not _only_computes(place, function, name) or not _moves_behind(place, call, node):
        return ""
    new, text = fresh(f"{name}_in", place.taken), place.text(node)
    return (
        f"stays as it is: once `{new} = {zeros_for(place)}`, before each launch `{new}.fill_({text})`, and line "
        f"{call.lineno} gives `{new}` for `{text}`, which is `{name}` here{of_what_is_given(place, [name])}"
    )


def is_a_tensor(place: Place, name: str) -> bool:
    """Whether a parameter is given a tensor of the device, as far as the step's own arguments and its object tell."""
    function = place.source.function_of(place.statement)
    return function is not None and _is_a_tensor(place, function, name, 0)


def _is_a_tensor(place: Place, function: Function, name: str, deep: int) -> bool:
    if name not in arguments_of(function) or deep > 3:
        return False
    if function.name == place.entry:
        return _is_there(place.arguments.get(name))
    call = _one_call(place, function)
    node = _given(place, function, call).get(name) if call is not None else None
    if node is None or call is None:
        return False
    path, above = path_of(node), place.source.function_of(call)
    if "." in path:
        return _is_there(place.value(path))
    return bool(path) and isinstance(above, Function) and _is_a_tensor(place, above, path, deep + 1)


def _is_there(held: object) -> bool:
    return isinstance(held, torch.Tensor) and held.device.type != "cpu"


def _one_call(place: Place, function: Function) -> ast.Call | None:
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    return calls[0] if len(calls) == 1 else None


def _given(place: Place, function: Function, call: ast.Call) -> dict[str, ast.expr]:
    """What a call gives each parameter; nothing where it unpacks."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return {}
    own = arguments_of(function)[is_method(place.source, function) :]
    return dict(zip(own, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}


def _is_a_number(place: Place, node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and type(place.value(path_of(node))) is float


def _only_computes(place: Place, function: Function, name: str) -> bool:
    """Whether a tensor does in each line what the number did there."""
    read = [n for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name) and n.id == name]
    return all(_computes(place, n) for n in read)


def _computes(place: Place, node: ast.AST) -> bool:
    above = place.source.parents.get(node)
    if isinstance(above, ast.UnaryOp):
        return isinstance(above.op, ast.USub) and _computes(place, above)
    if not isinstance(above, ast.BinOp) or not isinstance(above.op, _COMPUTES):
        return False
    outer: ast.AST | None = above
    while isinstance(outer, ast.expr):
        python = isinstance(outer, ast.Call) and isinstance(outer.func, ast.Name)
        if python or isinstance(outer, (ast.Compare, ast.IfExp, ast.Subscript, ast.BoolOp)):
            return False
        if isinstance(outer, ast.Call) and path_of(outer.func).partition(".")[0] in ("math", "np", "numpy"):
            return False
        outer = place.source.parents.get(outer)
    return True


def _moves_behind(place: Place, call: ast.Call, node: ast.expr) -> bool:
    """Whether something gives the attribute other numbers, and the step does so only behind the call."""
    attr, step = path_of(node).rpartition(".")[2], place.source.function_of(call)
    every = [f for f in ast.walk(place.source.tree) if isinstance(f, Function) and f.name != "__init__"]
    sets = [
        (f, n)
        for f in every
        for n in ast.walk(f)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and n.attr == attr
    ]
    above = place.source.above(call)
    if step is None or step.name != place.entry or any(isinstance(n, (ast.For, ast.While)) for n in above):
        return False
    return bool(sets) and all(f is not step or n.lineno > call.lineno for f, n in sets)
