"""What tells whether a tensor of the CPU has other numbers in another call."""

from __future__ import annotations

import zlib

import torch

MOST = 1 << 20  # bytes of a tensor


def sum_of(tensor: torch.Tensor) -> int:
    """What tells whether a tensor of the CPU has other numbers; 0 where it is too large to ask, or no plain one."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return 0
    if not 0 < tensor.numel() * tensor.element_size() <= MOST:
        return 0
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    return zlib.crc32(flat.numpy().tobytes()) + 1
