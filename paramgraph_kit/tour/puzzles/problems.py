"""The ten: inputs that are drawn for each grading, the numbers that are right, and two limits each.

An answer to one of the first kind is a function that is captured once; of the second kind, one that makes what is
called. References are plain code on the CPU: they tell what is to be computed, and nothing of how.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from itertools import cycle
from typing import Any

import torch
from torch import Generator, Tensor, nn

CALLS = 4
ROWS, COLUMNS = 64, 1024
SIZE = ROWS * COLUMNS * 4  # bytes of one input
SLACK = SIZE // 4  # reductions need a little memory, more on some devices
Tensors = tuple[Tensor, ...]


def off(got: Tensor, expected: Tensor) -> str:
    """How much of a result differs, and how far.

    >>> off(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 2.0, 3.0]))
    '1 of 3 values differ, by 2 at most'
    >>> off(torch.tensor([float("nan"), 1.0]), torch.ones(2))
    '1 of 2 values differ: they are no numbers'
    """
    wrong = ~torch.isclose(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    text = f"{int(wrong.sum()):,} of {got.numel():,} values differ"
    most = (got.double() - expected.double())[wrong].abs().max().item()
    return f"{text}, by {most:.3g} at most" if math.isfinite(most) else f"{text}: they are no numbers"


def _x(generator: Generator) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=generator)


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One graph: the function of the answer is captured, and its graph replayed with other inputs."""

    title: str
    limits: dict[str, int]  # of nodes, depth (nodes on the longest way) and memory (bytes at its peak)
    inputs: Callable[[Generator], Tensors]
    reference: Callable[..., Tensor]  # changes its inputs as the answer must, and no others

    def judge(self, inputs: Tensors, after: list[Tensor], results: list[Tensor], earlier: list[list[Tensor]]) -> str:
        """What is wrong with a replay, or ""; ``earlier`` are the results of those before."""
        expected_inputs = [tensor.clone() for tensor in inputs]
        expected = self.reference(*expected_inputs)
        if len(results) != 1 or results[0].shape != expected.shape or results[0].dtype != expected.dtype:
            return f"it returns {_shapes(results)}, not {_shapes([expected])}"
        if not torch.allclose(results[0], expected, rtol=1e-4, atol=1e-5):
            return f"the result is not right: {off(results[0], expected)}"
        for name, a, b in zip(signature(self.reference).parameters, after, expected_inputs, strict=True):
            if not torch.equal(a.nan_to_num(), b.nan_to_num()):
                held = f"{name} holds {a.item()}, not {b.item()}" if a.numel() == 1 else f"in {name}, {off(a, b)}"
                return f"an input does not hold what it should: {held}"
        return ""


@dataclass(frozen=True, slots=True)
class Random(Puzzle):
    """The same, where results are drawn."""

    def judge(self, inputs: Tensors, after: list[Tensor], results: list[Tensor], earlier: list[list[Tensor]]) -> str:
        """Each value is dropped or doubled, about half of them, and never the same ones twice."""
        (x,) = inputs
        if len(results) != 1 or results[0].shape != x.shape:
            return f"it returns {_shapes(results)}, not {_shapes([x])}"
        kept = results[0] != 0
        if not torch.allclose(results[0], torch.where(kept, 2 * x, 0)):
            return "a value is neither 0 nor doubled"
        if not 0.45 < kept.double().mean() < 0.55:
            return f"{kept.double().mean():.0%} of the values are kept, not half"
        if any((kept == (other != 0)).double().mean() > 0.9 for (other,) in earlier):
            return "the same values are dropped again"
        return "" if torch.equal(after[0], x) else "an input does not hold what it should"


@dataclass(frozen=True, slots=True)
class Steps:
    """What is called again and again: the function of the answer makes it from a model and an example of an input."""

    title: str
    limits: dict[str, int]
    inputs: Callable[[Generator], Tensors]
    model: Callable[[Generator, torch.device], tuple[Any, Callable[..., Tensor]]]  # and what is right
    by_hand: bool = False
    trains: bool = False


def _shapes(tensors: list[Tensor]) -> str:
    return ", ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors) or "no tensor"


# the references


_SCALES = cycle((0.2, 3.0))  # in turn: drawn, one grading in sixteen had replays of one kind alone


def _limited(x: Tensor) -> Tensor:
    largest = float(x.abs().max())
    return x * (4 / largest) if largest > 4 else x


def _limited_inputs(generator: Generator) -> Tensors:
    return (_x(generator) * next(_SCALES),)


def _decayed(x: Tensor, steps: Tensor) -> Tensor:
    steps += 1
    return x * 0.5 ** int(steps)


def _kept_rows(generator: Generator) -> Tensors:
    keep = torch.rand(ROWS, generator=generator) < 0.7
    keep[0] = True
    x = _x(generator)
    x[~keep & (torch.rand(ROWS, generator=generator) < 0.5)] = float("nan")  # whoever multiplies by 0 keeps these
    return x, keep


def _sines(x: Tensor) -> Tensor:
    total, h = x.clone(), x
    for _ in range(6):
        h = torch.sin(h)
        total = total + h
    return total


def _two_ways(a: Tensor, b: Tensor) -> Tensor:
    left = torch.tanh(torch.exp(torch.sin(a))) * 3
    right = torch.sigmoid(torch.cos(b)).sqrt() - 1
    return left + right


def _pair(generator: Generator) -> Tensors:
    return _x(generator), _x(generator)


class Layers(nn.Module):
    """Two layers with a branch between them that only the host can take."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """A value on the device decides."""
        h = torch.relu(self.first(x))
        if h.max() > 1.0:
            h = h * 0.5
        out: Tensor = self.second(h)
        return out


def _drawn(model: nn.Module, generator: Generator) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    return model


def _sequence(generator: Generator, device: torch.device) -> tuple[Any, Callable[..., Tensor]]:
    model = _drawn(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()), generator)
    reference = copy.deepcopy(model)
    return model.to(device), reference


def _layers(generator: Generator, device: torch.device) -> tuple[Any, Callable[..., Tensor]]:
    model = _drawn(Layers(), generator)
    reference = copy.deepcopy(model)
    return model.to(device), reference


def _trained(generator: Generator, device: torch.device) -> tuple[Any, Callable[..., Tensor]]:
    model = _drawn(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1)), generator)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = reference(x).square().mean()
            loss.backward()
            optimizer.step()
        result: Tensor = loss.detach()
        return result

    return model.to(device), step


def _rows(generator: Generator) -> Tensors:
    return (torch.randn(32, 64, generator=generator) * 2,)


PUZZLES: dict[int, Puzzle | Steps] = {
    1: Puzzle("make it capture", {"nodes": 7, "memory": 2 * SIZE + SLACK}, _limited_inputs, _limited),
    2: Puzzle(
        "a counter that counts",
        {"nodes": 5, "memory": SIZE + SLACK},
        lambda g: (_x(g), torch.randint(0, 5, (), generator=g)),
        _decayed,
    ),
    3: Puzzle(
        "rows that count",
        {"nodes": 7, "memory": SIZE + SLACK},
        _kept_rows,
        lambda x, keep: x[keep].mean(0),
    ),
    4: Random("new noise each time", {"nodes": 4, "memory": 3 * SIZE}, lambda g: (_x(g),), lambda x: x),
    5: Steps("feed it", {"operations a call": 2, "copied a call": 2 * 32 * 64 * 4}, _rows, _sequence, by_hand=True),
    6: Puzzle("nothing in between", {"nodes": 12, "memory": 2 * SIZE + SLACK}, lambda g: (_x(g),), _sines),
    7: Puzzle("two streams", {"depth": 5, "nodes": 9}, _pair, _two_ways),
    8: Steps("a training step", {"launches a call": 1, "calls ungraphed": 2}, _rows, _trained, trains=True),
    9: Steps("any address", {"launches a call": 1, "kernels outside": 0}, _rows, _layers),
    10: Puzzle("two streams, one graph, half the memory", {"depth": 5, "memory": 2 * SIZE}, _pair, _two_ways),
}
