"""A model that looks at a value while it runs, and one that does not; ``story`` runs this text as a user's file."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """Two layers; large activations are scaled down in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class Broken(Model):
    """Asks for the largest activation on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (rows, width)."""
        h = torch.relu(self.up(x))
        if h.max().item() > 1:
            h = h / h.max()
        y: torch.Tensor = self.down(h)
        return y


class Fixed(Model):
    """Chooses on the device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (rows, width)."""
        h = torch.relu(self.up(x))
        h = torch.where(h.max() > 1, h / h.max(), h)
        y: torch.Tensor = self.down(h)
        return y
