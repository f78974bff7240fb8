"""What the programs of ``steps`` are made of: a step with its state, a small model, batches, and what to compare."""

# mypy: disable-error-code="no-untyped-call, no-any-return, index"
from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import paramgraph_kit as pgk

Data = tuple[Any, ...]


@dataclass
class Program:
    """A step with its state, and how to make batches for it."""

    step: Callable[..., Any]
    state: tuple[Any, ...]
    model: nn.Module
    batch: Callable[[int], Data]
    between: Callable[[int], None] = lambda _: None  # what the loop does after each step
    extra: list[Any] = field(default_factory=list)  # more tensors to compare


def device() -> torch.device:
    return pgk.device()


def mlp(dropout: float = 0.0, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(8, 16), *middle, nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4)).to(device())


def batch(number: int, rows: int = 5) -> Data:
    generator = torch.Generator().manual_seed(number)
    return (
        torch.randn(rows, 8, generator=generator).to(device()),
        torch.randn(rows, 4, generator=generator).to(device()),
    )


def basic(
    model: Callable[..., Any], optimizer: Any, loss_of: Callable[..., Any] | None = None, **zero: Any
) -> Callable[..., Any]:
    """The step of every tutorial; ``loss_of(x, y)`` where it is not the mean square of what ``model`` is off by."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(**zero)
        loss = F.mse_loss(model(x), y) if loss_of is None else loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def simple(make: Callable[[Any], Any], dropout: float = 0.0, norm: bool = False, **zero: Any) -> Program:
    model = mlp(dropout, norm)
    optimizer = make(model.parameters())
    return Program(basic(model, optimizer, **zero), (model, optimizer), model, batch)


def rate() -> torch.Tensor:
    return torch.tensor(1e-2, device=device())


def values_of(program: Program) -> list[Any]:
    """Copies of all tensors and numbers of a program's state, in a fixed order."""
    found: list[Any] = []
    seen: dict[int, Any] = {}  # what a program gives anew, as its state_dict(), lives on: the next has not its id

    def visit(value: Any) -> None:
        if id(value) in seen and not isinstance(value, (int, float, str, bool)):
            return
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            found.append(value.detach().cpu().clone())
            if value.is_leaf and value.grad is not None:
                found.append(value.grad.detach().cpu().clone())
        elif isinstance(value, nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                visit(tensor)
            visit(getattr(value, "hidden", None))
        elif isinstance(value, (torch.optim.Optimizer, torch.amp.GradScaler)):
            visit(value.state_dict())
        elif isinstance(value, dict):
            for part in value.values():
                visit(part)
        elif isinstance(value, (list, tuple, deque)):
            for part in value:
                visit(part)
        elif isinstance(value, (int, float, str, bool)):
            found.append(value)
        elif value is not None and not callable(value):
            visit({k: v for k, v in vars(value).items() if not k.startswith("_")})

    visit((program.model, *program.state, *program.extra))
    return copy.copy(found)
