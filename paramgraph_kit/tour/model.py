"""The layers of the tour, which stand for a user's code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 256


class Broken(nn.Module):
    """A layer that halves what is too loud, and asks the CPU to decide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, WIDTH), and the same comes back."""
        h = torch.relu(self.up(x))
        if h.max().item() > 1.0:
            h = h * 0.5
        y: Tensor = x + self.down(h)
        return y


class Fixed(Broken):
    """The same layer; the device decides."""

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, WIDTH), and the same comes back."""
        h = torch.relu(self.up(x))
        h = torch.where(h.max() > 1.0, h * 0.5, h)
        y: Tensor = x + self.down(h)
        return y
