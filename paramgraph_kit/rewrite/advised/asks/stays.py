"""Advice for sizes that tensors around the function decide alone: found once, before it."""

from __future__ import annotations

import ast
from inspect import isbuiltin

import torch

from paramgraph_kit.rewrite.source.edits import Function, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of, value_of
from paramgraph_kit.rewrite.source.quiet import draws, is_quiet
from paramgraph_kit.rewrite.source.writes import written_in_place

_CODES = ("dynamic-shape", "hidden-size")
_DEEP = 4  # names that come of others


def found_once(place: Place) -> str:
    """``idx = torch.where(inside)[0]`` with ``inside = anchors[:, 3] < 12``, of `anchors` around the function."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in _CODES or function is None or node not in function.body:
        return ""
    if not isinstance(node, ast.Assign) or not isinstance(target_of(node), ast.Name):
        return ""
    lines, around = [node], set[str]()
    for _ in range(_DEEP):
        read = {name for one in lines for name in names_in(one.value)}
        around = {name for name in read if isinstance(place.space.get(name), torch.Tensor)} - locals_of(function)
        made = [_made(function, name) for name in read & locals_of(function)]
        if None in made or any(_moves(place, one.value) for one in lines):
            return ""
        if len(together := [*dict.fromkeys([*lines, *(one for one in made if one is not None)])]) == len(lines):
            break
        lines = together
    functions = [n for n in ast.walk(place.source.tree) if isinstance(n, Function)]
    inside = [n for each in functions for n in ast.walk(each)]
    given = {name for n in inside if isinstance(n, ast.Global) for name in n.names}
    if not around or around & (given | {*written_in_place(inside)}):
        return ""
    texts = "; ".join(place.text(one) for one in sorted(lines, key=lambda one: one.lineno))
    names = "`, `".join(sorted(around))
    return (
        f"nothing that a call is given decides it: as long as `{names}` stays as it is, once before the function "
        f"`{texts}`, and take that out here"
    )


def _moves(place: Place, node: ast.expr) -> bool:
    """Whether an expression draws, or asks a module or a function of the user's, whose own state may move."""
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        path, held = path_of(call.func), value_of(place.space, path_of(call.func))
        is_method = isinstance(call.func, ast.Attribute) and not path.startswith("self.")
        of_torch = not isinstance(held, torch.nn.Module) and str(getattr(held, "__module__", None)).startswith("torch")
        if draws(called(call)) or not (of_torch or (held is None and is_method) or isbuiltin(held) or _computes(held)):
            return True
    return False


def _computes(held: object) -> bool:
    """Whether a function of the user's does nothing but compute; a module may be trained."""
    return not isinstance(held, torch.nn.Module) and is_quiet(held)


def _made(function: Function, name: str) -> ast.Assign | None:
    """What gives a local name its only value."""
    stores = [n for part in function.body for n in within(part) if isinstance(n, ast.Name) and n.id == name]
    made = [
        n
        for n in function.body
        if isinstance(n, ast.Assign) and name in {t.id for t in n.targets if isinstance(t, ast.Name)}
    ]
    return made[0] if len(made) == 1 == sum(isinstance(n.ctx, ast.Store) for n in stores) else None
