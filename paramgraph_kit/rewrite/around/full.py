"""Numbers that a launch is given in a tensor of whole ones: a fraction that comes later must not be cut."""

from __future__ import annotations

import ast
from typing import Protocol

import torch

from paramgraph_kit.rewrite.source.place import Form, called, fresh

_WHOLE = frozenset("len int range round randint randrange randperm size numel floor ceil".split())  # noqa: SIM905
_MAKES = ("tensor", "as_tensor", "asarray", "full")
SAID = "a fraction would be cut: capture again"


class Seen(Protocol):
    """What an expression had in the steps that were watched."""

    kinds: set[type]

    @property
    def form(self) -> Form | None:
        """That of the tensors, where they were tensors."""


def in_full(node: ast.expr, name: str, text: str, values: Seen, taken: set[str]) -> list[str]:
    """Lines that write an expression's value into a tensor of whole numbers and refuse another; none where it is one.

    ``text`` is the expression as it is written there, ``name`` the tensor, ``taken`` are names that others have.
    """
    whole = values.form is None or not (values.form.dtype.is_floating_point or values.form.dtype.is_complex)
    calls = {called(each) for each in ast.walk(node) if isinstance(each, ast.Call)}
    given = any(isinstance(each, (ast.Name, ast.Attribute)) for each in ast.walk(node))
    asks = isinstance(node, (ast.BoolOp, ast.Compare, ast.IfExp))
    if not whole or not given or asks or calls & _WHOLE or "dtype" in text:
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
