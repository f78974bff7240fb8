"""What the tables of changes share."""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import paramgraph_kit as pgk

DEVICE = pgk.device()
FILE = pathlib.Path(tempfile.gettempdir(), f"paramgraph-state-{os.getpid()}.txt")


class Thing:
    factor = 1.0

    def method(self) -> float:
        return self.factor

    def __len__(self) -> int:
        return int(self.factor)


class Other(Thing):
    factor = 2.0


class Third(Thing):
    def method(self) -> float:
        return 3.0


def toggle(*values: Any) -> Callable[[], Any]:
    """One after the other, the first comes last."""
    turn = itertools.cycle([*values[1:], values[0]])
    return lambda: next(turn)


def linear() -> nn.Linear:
    """A layer that multiplies by a number."""
    torch.manual_seed(0)
    return nn.Linear(1, 1, bias=False).to(DEVICE).requires_grad_(False)


def ones(*size: int) -> torch.Tensor:
    """On the device."""
    return torch.ones(size or (1,), device=DEVICE)


def drop(_: object) -> None:
    """For changes that return something."""
