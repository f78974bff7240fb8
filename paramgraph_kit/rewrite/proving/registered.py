"""Random generators of the program's own: a graph that draws from one has to know it ahead of its capture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def register(graph: Any, generators: Iterable[torch.Generator]) -> None:
    """Have a graph move on those of some generators that draw on the device."""
    for each in generators:
        if each.device.type != "cpu":
            graph.register_generator_state(each)
