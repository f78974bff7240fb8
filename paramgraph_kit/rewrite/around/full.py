"""Numbers that a launch is given in a tensor of whole ones: a fraction that comes later must not be cut."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from typing import Protocol

import torch

from paramgraph_kit.rewrite.expressions.numbers.readings import PERIODIC
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Form, called, fresh, target_of

_WHOLE = frozenset("len int range round randint randrange randperm size numel floor ceil".split())  # noqa: SIM905
_MAKES = ("tensor", "as_tensor", "asarray", "full")
SAID = "a fraction would be cut: capture again"


class Seen(Protocol):
    """What an expression had in the steps that were watched."""

    kinds: set[type]

    @property
    def form(self) -> Form | None:
        """That of the tensors, where they were tensors."""


def cancels(source: Source, node: ast.expr) -> bool:
    """``1 - 0.999 ** n``: whether a number is the exponent of what is taken from one that may be nearly as large."""
    power = source.parents.get(node)
    above = source.parents.get(power) if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow) else None
    taken = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub) and above.right is power
    return taken and isinstance(power, ast.BinOp) and power.right is node


def turns(source: Source, node: ast.expr) -> bool:
    """Whether a number is given to a function of the file that makes an angle of it: ``self.rhs(u, self.t)``."""
    call = source.parents.get(node)
    if not isinstance(call, ast.Call) or node not in call.args:
        return False
    for function in (n for n in source.parents if isinstance(n, ast.FunctionDef) and n.name == called(call)):
        names = [each.arg for each in function.args.args]
        at = call.args.index(node) + (names[:1] == ["self"] and isinstance(call.func, ast.Attribute))
        angles = (n for n in ast.walk(function) if isinstance(n, ast.Call) and called(n) in PERIODIC)
        read = {n.id for angle in angles for n in ast.walk(angle) if isinstance(n, ast.Name)}
        if not read.isdisjoint(names[at : at + 1]):
            return True
    return False


def whole(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that statements, in their order, give numbers which can be no fraction: what ``randint`` draws."""
    known: set[str] = set()
    for node in statements:
        target = target_of(node)
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
            known = known | {target.id} if _is_whole(node.value, known) else known - {target.id}
    return known


def _is_whole(node: ast.expr, known: set[str]) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_whole(node.body, known) and _is_whole(node.orelse, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)):
        return _is_whole(node.left, known) and _is_whole(node.right, known)
    if isinstance(node, ast.Call):
        return called(node) in _WHOLE and not (called(node) == "round" and len(node.args) > 1)
    return (isinstance(node, ast.Name) and node.id in known) or (
        isinstance(node, ast.Constant) and type(node.value) is int
    )


def in_full(
    node: ast.expr, name: str, text: str, values: Seen, taken: set[str], known: Collection[str] = ()
) -> list[str]:
    """Lines that write an expression's value into a tensor of whole numbers and refuse another; none where it is one.

    ``text`` is the expression as it is written there, ``name`` the tensor, ``taken`` are names that others have,
    ``known`` those of numbers that can be no fraction.
    """
    if _is_whole(node, {*known}):
        return []
    of_whole = values.form is None or not (values.form.dtype.is_floating_point or values.form.dtype.is_complex)
    calls = {called(each) for each in ast.walk(node) if isinstance(each, ast.Call)}
    given = any(isinstance(each, (ast.Name, ast.Attribute)) for each in ast.walk(node))
    asks = isinstance(node, (ast.BoolOp, ast.Compare, ast.IfExp))
    if not of_whole or not given or asks or calls & _WHOLE or "dtype" in text:
        return []
    now = fresh(f"{name.removesuffix('_in')}_now", taken)
    if values.form is None:
        if values.kinds != {int}:
            return []
        if not calls:
            return [f'assert {text} == int({text}), "{SAID}"', f"{name}.fill_({text})"]
        return [f"{now} = {text}", f'assert {now} == int({now}), "{SAID}"', f"{name}.fill_({now})"]
    if values.form.dtype is torch.bool or not calls & {*_MAKES}:
        return []
    return [f"{now} = {text}", f'assert not {now}.is_floating_point(), "{SAID}"', f"{name}.copy_({now})"]
