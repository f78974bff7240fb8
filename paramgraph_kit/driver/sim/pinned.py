"""Pinned host memory: real bytes of the host that a captured copy may name.

Only ``tensor.pin_memory()`` makes it; factories with ``pin_memory=True`` ask torch for an allocator in C++.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_pinned: dict[int, tuple[int, weakref.ref[Any]]] = {}  # address -> (bytes, the storage)


def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """``aten::_pin_memory``: a copy in pinned memory."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu").copy_(tensor)
    storage = copy.untyped_storage()
    address = storage.data_ptr()
    if storage.nbytes():
        _pinned[address] = (storage.nbytes(), weakref.ref(storage, lambda _: _pinned.pop(address, None)))
    return copy


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """``aten::is_pinned`` for host tensors."""
    return tensor.untyped_storage().data_ptr() in _pinned
