"""Advice for a branch of the host that nothing in the step waits for: what it only keeps, or is called for at last."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Function, locals_of, within
from paramgraph_kit.rewrite.source.place import TO_HOST, Place, called, is_training

_OF_THE_HOST = (*TO_HOST, "append", "update", "print", "detach", "mean", "sum", "clone")
_TELLS = ("info", "debug", "warning", "write", "add_scalar", "log", "round", "format", "min", "max", "abs", "str")
_NUMBERS = (*TO_HOST, "float", "int", "len")


def keeps_numbers(node: ast.AST) -> bool:
    """``stats["loss"] = loss.item()``: a number, for whoever looks at it later."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    kept = all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets)
    return kept and any(isinstance(n, ast.Call) and called(n) in _NUMBERS for n in ast.walk(node.value))


def only_tells(place: Place, branch: ast.If) -> bool:
    """``if n % 10 == 0: lossf = loss.item(); print(lossf)``: what it gives a name is of its own lines alone."""
    function = place.source.function_of(branch)
    inside = [n for part in (*branch.body, *branch.orelse) for n in within(part)]
    made = [n for n in inside if isinstance(n, ast.Assign)]
    others = (ast.AugAssign, ast.Return, ast.Continue, ast.Break, ast.Global, ast.Nonlocal)
    if function is None or any(isinstance(n, others) for n in inside):
        return False
    names = {each.id for n in made for each in n.targets if isinstance(each, ast.Name)}
    plain = all(isinstance(each, ast.Name) for n in made for each in n.targets) and names <= locals_of(function)
    calls = {called(n) for n in inside if isinstance(n, ast.Call)}
    below = set(inside)
    around = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n not in below)
    return plain and calls <= {*_OF_THE_HOST, *_NUMBERS, *_TELLS} and names.isdisjoint(n.id for n in around)


def called_last(place: Place) -> str:
    """``ema.update()`` behind all else of a step, in which the host decides what is averaged: all of it goes behind."""
    helper = place.source.function_of(place.statement)
    if helper is None or not place.entry or helper.name == place.entry or helper.name in ("forward", "__call__"):
        return ""
    inside = [n for part in helper.body for n in within(part)]
    gives = any(isinstance(n, (ast.Return, ast.Yield)) and n.value is not None for n in inside)
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == helper.name]
    above = place.source.parents.get(calls[0]) if len(calls) == 1 else None
    step = place.source.function_of(above) if isinstance(above, ast.Expr) else None
    if gives or any(map(is_training, inside)) or not isinstance(above, ast.Expr) or step is None:
        return ""
    if step.name != place.entry or above not in step.body:
        return ""
    before = [n for part in step.body[: step.body.index(above)] for n in within(part)]
    rest = [n for part in step.body[step.body.index(above) + 1 :] for n in within(part)]
    if any(isinstance(n, ast.Return) for n in before) or any(isinstance(n, (Function, ast.BinOp)) for n in rest):
        return ""
    if any(isinstance(n, ast.Call) and called(n) not in _OF_THE_HOST for n in rest):
        return ""
    return (
        f"the host decides, and nothing of the step comes of it: take `{place.text(above)}`, line {above.lineno}, "
        f"out of `{step.name}`, and call it behind each launch"
    )
