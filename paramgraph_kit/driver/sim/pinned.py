"""Pinned host memory: real bytes of the host that a captured copy may name.

Only ``tensor.pin_memory()`` makes it; factories with ``pin_memory=True`` ask torch for an allocator in C++.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch

from .stream import current_stream
from .under_way import forbid_unsafe_call

_free: Counter[int] = Counter()  # blocks that torch keeps, by their size
_pinned: dict[int, tuple[int, weakref.ref[Any]]] = {}  # address -> (bytes, the storage)


def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """``aten::_pin_memory``: a copy in pinned memory."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu").copy_(tensor)
    storage = copy.untyped_storage()
    address = storage.data_ptr()
    if storage.nbytes():
        size = take(storage.nbytes())

        def freed(_: object) -> None:
            _pinned.pop(address, None)
            give(size)

        _pinned[address] = (storage.nbytes(), weakref.ref(storage, freed))
    return copy


def places(mask: Any) -> list[torch.Tensor]:
    """Where a mask of the host is set, on the device: torch copies that from pinned memory, without waiting."""
    return [pin(each).to("sim", non_blocking=True) for each in mask.nonzero(as_tuple=True)]


def take(nbytes: int) -> int:
    """The size of the block of pinned memory for a request: a free one, or CUDA is asked, which a capture may forbid.

    Raises:
        torch.AcceleratorError: code 900, a capture forbids it on this thread and its stream is not captured.
    """
    size = 1 << (nbytes - 1).bit_length()
    if _free[size]:
        _free[size] -= 1
    elif current_stream().capture is None:  # in its own captures torch allows it
        forbid_unsafe_call()
    return size


def forget() -> None:
    """Keep no free blocks, as in a fresh process."""
    _free.clear()


def give(size: int) -> None:
    """Keep a block for the next request."""
    _free[size] += 1


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """``aten::is_pinned`` for host tensors."""
    return tensor.untyped_storage().data_ptr() in _pinned
