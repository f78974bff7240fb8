"""Streams and threads: side streams inside and outside the compiled region, one model on two streams and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.corpus.case import Case, built, normal, tensors
from tests.corpus.training import MLP


class TwoBranches(nn.Module):
    """Two branches, the second on a stream of its own where there are streams."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)
        self.side: Any = torch.cuda.Stream() if torch.cuda.is_available() else None

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        if self.side is None:
            alone: Tensor = self.left(x).relu() + self.right(x).sin()
            return alone
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            right = self.right(x).sin()
        left = self.left(x).relu()
        here.wait_stream(self.side)
        result: Tensor = left + right
        return result


def _in_turn(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    """One model on two streams that overlap."""
    if inputs[0].device.type != "cuda":
        with torch.no_grad():
            return tensors([model(x) for x in inputs])
    here = torch.cuda.current_stream()
    sides = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for i, x in enumerate(inputs):
        side = sides[i % 2]
        side.wait_stream(here)
        with torch.cuda.stream(side), torch.no_grad():
            found.append(model(x))
        x.record_stream(side)
    for side in sides:
        here.wait_stream(side)
    for y in found:
        y.record_stream(here)
    return found


def _threads(work: Callable[[nn.Module, Tensor], list[Tensor]]) -> Any:
    """One model called from two threads, each on a stream of its own, with a start together."""

    def step(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
        found: dict[int, Any] = {}
        together = threading.Barrier(2)

        def run(index: int) -> None:
            try:
                together.wait()
                found[index] = work(model, inputs[index])
            except Exception as error:
                found[index] = error

        if inputs[0].device.type == "cuda":
            torch.cuda.synchronize()
        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in found.values():
            if isinstance(result, Exception):
                raise result
        return [t for i in range(2) for t in found[i]]

    return step


def _on_own_stream(model: nn.Module, x: Tensor) -> list[Tensor]:
    if x.device.type != "cuda":
        with torch.no_grad():
            return tensors([model(x + i) for i in range(3)])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        found = tensors([model(x + i) for i in range(3)])
    side.synchronize()
    return found


def _gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    parameters = list(model.parameters())
    return [g for i in range(2) for g in torch.autograd.grad((model(x + i)).square().mean(), parameters)]


def cases() -> list[Case]:
    """The streams family."""
    mlp, two = built(MLP), normal((16, 32), (16, 32))
    return [
        Case("side stream inside", built(TwoBranches), normal((16, 32)), _in_turn),
        Case("two streams", mlp, normal(*[(64, 32)] * 4), _in_turn),
        Case("two threads", mlp, two, _threads(_on_own_stream)),
        Case(
            "two threads training",
            built(MLP, train=True),
            two,
            _threads(_gradients),
            training=True,
            unsimulated="autograd's thread follows whoever chose a stream last, so two callers confuse it",
        ),
    ]
