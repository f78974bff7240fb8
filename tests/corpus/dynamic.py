"""Several sizes in turn: shapes that torch marks as dynamic, or that it compiles again for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paramgraph_kit.bench.workloads import Llama
from tests.corpus.case import (
    Case,
    adamw_fused,
    built,
    in_turn,
    inference,
    integers,
    normal,
    tensors,
    training,
)
from tests.corpus.training import MLP

SIZES = (24, 17, 40, 33)


class Pool(nn.Module):
    """Convolution and a mean over whatever size the image has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, 3, height, width)."""
        result: Tensor = self.head(self.conv(x).relu().mean((2, 3)))
        return result


class Selected(nn.Module):
    """Rows that pass a threshold: their number is known on the device only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x``: (rows, 32)."""
        hidden = self.first(x)
        return self.second(hidden[hidden[:, 0] > 0]).sum(0), hidden


class Branch(nn.Module):
    """A value of the device decides which way to go: Dynamo breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 32)."""
        result: Tensor = self.up(x) if x.sum() > 0 else self.down(x)
        return result.relu()


def _every_size(model: nn.Module, inputs: list[Tensor], _: torch.optim.Optimizer | None) -> list[Tensor]:
    with torch.no_grad():
        return tensors([model(x) for x in inputs])


def cases() -> list[Case]:
    """The dynamic family."""
    rows = [normal((n, 32)) for n in SIZES]
    images = [normal((2, 3, n, n + 1)) for n in SIZES]
    texts = [integers(50, (n % 3 + 1, n)) for n in SIZES]
    llama = built(lambda: Llama(1, 64, 4, 128, 50))
    mlp, train = built(MLP), built(MLP, train=True)
    return [
        Case("rows dynamic", mlp, in_turn(*rows), inference(), dynamic=True),
        Case("rows dynamic after the second", mlp, in_turn(*rows), inference()),
        Case("rows compiled again", mlp, in_turn(*rows), inference(), dynamic=False),
        Case("rows training dynamic", train, in_turn(*rows), training(), training=True, dynamic=True),
        Case(
            "rows training compiled again",
            train,
            in_turn(*rows),
            training(),
            training=True,
            dynamic=False,
            optimizer=adamw_fused,
        ),
        Case("images dynamic", built(Pool), in_turn(*images), inference(), dynamic=True),
        Case("texts dynamic", llama, in_turn(*texts), inference(), dynamic=True),
        Case("all sizes in one step", mlp, normal(*[(n, 32) for n in SIZES]), _every_size, dynamic=True),
        Case("rows chosen by a mask", built(Selected), normal((16, 32)), inference()),
        Case("branch on a value", built(Branch), normal((16, 32)), inference()),
    ]
