"""Loops that end early become loops that go on and change nothing more: a rule for ``if c: break``."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.branches import condition_of
from paramgraph_kit.rewrite.edits import SIMPLE, Edit, Function, locals_of, names_in
from paramgraph_kit.rewrite.moving import arguments_of, stored
from paramgraph_kit.rewrite.place import Place, fresh
from paramgraph_kit.rewrite.pure import is_pure

_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def go_on(place: Place) -> list[Edit]:
    """In a ``for`` loop, ``if c: break`` becomes ``done = done | c``, and what is carried on is kept where ``done``.

    Only loops are taken that do nothing but give values to the function's own names: all rounds run, and those after
    the end change nothing.
    """
    node = place.statement
    loop = place.source.parents.get(node)
    function = place.source.function_of(node)
    if not isinstance(node, ast.If) or node.orelse or [type(part) for part in node.body] != [ast.Break]:
        return []
    if not isinstance(loop, ast.For) or loop.orelse or node not in loop.body or function is None:
        return []
    steps = [part for part in loop.body if part is not node]
    if not all(isinstance(part, (ast.Assign, ast.AugAssign)) and _name(part) for part in steps):
        return []
    if not all(is_pure(place, part.value) for part in steps if isinstance(part, (ast.Assign, ast.AugAssign))):
        return []
    known = _before(function, loop)
    inside = set(ast.walk(loop))
    outside = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n not in inside}
    names = {name for part in steps if (name := _name(part))}
    if names & outside - known or names - locals_of(function) or names & stored([ast.Expr(loop.target)]):
        return []  # one that the loop makes, and that is read behind it
    done = fresh("done", names_in(place.source.tree) | locals_of(function))
    edits = [place.source.before(loop, [f"{done} = torch.zeros((), dtype=torch.bool, device={place.device})"])]
    for part in steps:
        name = _name(part)
        assert isinstance(part, (ast.Assign, ast.AugAssign))
        if name not in known:
            continue
        value = place.text(part.value)
        if isinstance(part, ast.AugAssign):
            if type(part.op) not in _SIGNS:
                return []
            value = value if isinstance(part.value, SIMPLE) else f"({value})"
            value = f"{name} {_SIGNS[type(part.op)]} {value}"
        edits.append(place.source.replace(part, f"{name} = torch.where({done}, {name}, {value})"))
    test = condition_of(place, node.test).replace(".item()", "")
    test = test if isinstance(node.test, SIMPLE) else f"({test})"
    return [*edits, place.source.replace(node, f"{done} = {done} | {test}")]


def _name(node: ast.stmt) -> str:
    """The name that a statement gives a value to, if it is one."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _before(function: Function, loop: ast.For) -> set[str]:
    """Names that have a value before a loop."""
    earlier = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return set(arguments_of(function)) | {n.id for n in earlier if n.lineno < loop.lineno}
