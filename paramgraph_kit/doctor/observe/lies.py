"""Where a tensor lies that a graph may read there: on a device, or in pinned memory of the host's."""

from __future__ import annotations

import torch


class Lies(int):
    """The address of a tensor, which also tells its shape, and whether that is memory of the host's."""

    shape: tuple[int, ...] = ()
    pinned = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Lies:
        """Where a tensor lies."""
        lies = cls(tensor.data_ptr())
        lies.shape, lies.pinned = tuple(tensor.shape), tensor.device.type == "cpu"
        return lies


def is_copied_from(tensor: torch.Tensor) -> bool:
    """Whether a graph may read a tensor where it lies: a copy of pageable memory is none that it holds."""
    if tensor.device.type != "cpu":
        return True
    return type(tensor) is torch.Tensor and tensor.numel() > 0 and tensor.is_pinned()
