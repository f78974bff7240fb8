"""What an expression had in each of some steps, and whether a graph can read it from a tensor."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.rewrite.source.place import NUMBER, Form, called


@dataclass(slots=True)
class Values:
    """What an expression had in each step that was watched."""

    forms: set[Form] = field(default_factory=set)  # of tensors
    kinds: set[type] = field(default_factory=set)
    as_tensor: bool = False  # they were arrays or lists
    listed: bool = False  # lists of numbers with a fraction, which are no indexes
    wide: bool = False  # it meets tensors of float64
    seen: list[Any] = field(default_factory=list)

    def note(self, value: Any) -> Any:
        """Note one value; returns it."""
        plain = value.item() if hasattr(value, "__array__") and not getattr(value, "ndim", 1) else value
        if isinstance(value, torch.Tensor):
            plain = value.detach()
        elif hasattr(plain, "__array__") or (isinstance(value, list) and value and type(value[0]) in (int, float)):
            self.listed |= isinstance(value, list) and float in map(type, value)
            with suppress(TypeError, ValueError, RuntimeError):
                plain = torch.as_tensor(value)
                self.as_tensor = True
        if isinstance(plain, torch.Tensor):
            self.forms.add(Form.of(plain))
        self.kinds.add(type(plain))
        known = isinstance(plain, (torch.Tensor, *NUMBER))
        self.seen.append(plain.tolist() if isinstance(plain, torch.Tensor) else plain if known else None)
        return value

    @property
    def form(self) -> Form | None:
        """That of the tensors, where they were tensors."""
        return next(iter(self.forms), None)

    @property
    def moves(self) -> bool:
        """Whether it was not always the same."""
        return any(value != self.seen[0] for value in self.seen[1:])

    def is_fed(
        self,
        device: str,
        above: ast.AST | None,
        *,
        copied: bool,
        refused: bool,
        moves: bool = False,
        chosen: bool = False,
    ) -> bool:
        """Whether a graph can read it from a tensor: a number that moves, or a tensor that comes from the host.

        ``above`` is what reads it, ``refused`` says that a tensor of the CPU is a problem there, ``moves`` that a
        number does although these steps have not shown it, ``chosen`` that it is one of two that the device chooses
        between.
        """
        if len(self.kinds) != 1 or len(self.forms) > 1:
            return False
        if self.listed:
            return self.form is not None and (moves or self.moves)
        if self.form is not None:
            refused = refused or copied or bool(self.form.shape)  # a tensor of the CPU that is an index
            return copied == (self.form.device == device) and (refused or self.moves)
        # How many is what the device can decide.
        ranked = (isinstance(above, ast.Call) and called(above) == "topk") or chosen
        if self.kinds == {int} and not isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Subscript, ast.AugAssign)):
            return ranked and (moves or self.moves)  # perhaps a size
        return (moves or self.moves) and (
            self.kinds <= {float, int} or self.kinds == {complex} or isinstance(above, (ast.If, ast.IfExp, ast.Assign))
        )

    def zeros(self, device: str, indexes: bool, *, cancels: bool = False) -> str:
        """A tensor for it, as it would be written; ``cancels``: float32 would have few digits of what it is part of."""
        shape, dtype = (tuple(self.form.shape), self.form.dtype) if self.form else ((), torch.get_default_dtype())
        if self.kinds <= {int, bool}:
            shape, dtype = ((1,) if indexes else ()), torch.bool if self.kinds == {bool} else torch.long
        if self.kinds == {complex}:
            dtype = torch.complex128 if self.wide or dtype is torch.float64 else torch.complex64
        real = self.form is None and self.kinds <= {float, int} and float in self.kinds
        dtype = torch.float64 if (cancels and not shape) or (self.wide and real) else dtype
        size = ", ".join(map(str, shape)) if shape else "()"
        kind = "" if dtype is torch.get_default_dtype() else f", dtype={dtype}"
        return f"torch.zeros({size}{kind}, device={device})"

    def seen_one(self, device: str) -> str:
        """The same for what is written in some steps alone: a zero might make gradients of the others no numbers."""
        value = next((each for each in self.seen if type(each) in (int, float)), None)
        kind = ", dtype=torch.float64" if self.wide and type(value) is float else ""
        return self.zeros(device, False) if value is None else f"torch.full((), {value!r}{kind}, device={device})"


@dataclass(slots=True)
class Shown:
    """What runs of some lines have shown, with what they count: several ways of rewriting these ask for it."""

    values: dict[str, tuple[list[Values], list[int], list[int]]] = field(default_factory=dict)  # by lines that watch
    begun: tuple[dict[str, Any], list[int], list[int]] | None = None  # what the first step makes
