"""``tensor.data = other``: torch's C++ does it between devices that it knows, and asks whether they are such."""

from __future__ import annotations

from typing import Any

import torch

from .machine import DEVICE_NAME

ASKED = "_has_compatible_shallow_copy_type"


def install_data(library: Any) -> None:
    """Let ``data`` be assigned between host and device, to inference tensors and from them, as torch does for CUDA."""
    op = getattr(torch.ops.aten, ASKED).default

    def fits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
        return all(map(_is_dense, (tensor, other))) or bool(op.decompose(tensor, other))

    for key in ("PrivateUse1", "AutogradPrivateUse1"):  # a tensor of inference has the first alone
        library.impl(ASKED, fits, key)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of host or device; others, as while somebody traces, are no tensors of a device."""
    plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return plain and tensor.layout is torch.strided and tensor.device.type in (DEVICE_NAME, "cpu")
