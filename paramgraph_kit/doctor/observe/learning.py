"""Tensors that learn, whoever holds them: leaves of autograd that require gradients."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import torch

from paramgraph_kit.driver.collection import everything

# What gives `p` a gradient to add to: what a warm-up has left there goes on, in the program as without a graph.
ZEROS = "torch.zeros_like(p) if p.grad is None else p.grad"


def learning() -> Iterator[torch.Tensor]:
    """All of them that the process has."""
    everything()  # also those from ahead of a diagnosis, which it sets aside where it rewrites
    yield from (each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and _learns(each))


def _learns(tensor: torch.Tensor) -> bool:
    with suppress(RuntimeError):  # a view made without gradients says nothing of itself once its base is written
        return tensor.is_leaf and tensor.requires_grad
    return False
