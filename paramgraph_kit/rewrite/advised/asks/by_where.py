"""What stands for a branch once its flag is in a tensor of the device."""

from __future__ import annotations

from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where
from paramgraph_kit.rewrite.source.place import Place


def by_where(place: Place, flag: str) -> str:
    """The line that takes the branch's place where it is one, and what to write for each name elsewhere."""
    chosen = choose_by_where(place, flag)
    return f"`{chosen[0].text.strip()}`" if len(chosen) == 1 else f"`torch.where({flag}, ..., ...)` for what it assigns"
