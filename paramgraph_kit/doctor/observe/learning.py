"""Tensors that learn, whoever holds them: leaves of autograd that require gradients."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import torch

from paramgraph_kit.driver.collection import everything


def learning() -> Iterator[torch.Tensor]:
    """All of them that the process has."""
    everything()  # also those from ahead of a diagnosis, which it sets aside where it rewrites
    for each in gc.get_objects():
        with suppress(RuntimeError):  # a view made without gradients says nothing of itself once its base is written
            if issubclass(type(each), torch.Tensor) and each.is_leaf and each.requires_grad:
                yield each
