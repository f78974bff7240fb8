"""Pinned host memory: real bytes of the host that a captured copy may name, in blocks that are used again.

Only ``tensor.pin_memory()`` makes it; factories with ``pin_memory=True`` ask torch for an allocator in C++. As on a GPU
the next request of a size gets the block of what was freed, and a graph that names it copies what is there then [H200].
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import torch

from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name

from .stream import current_stream
from .under_way import forbid_unsafe_call

_free: dict[int, list[torch.UntypedStorage]] = defaultdict(list)  # blocks that torch keeps, by their size
_pinned: dict[int, tuple[torch.UntypedStorage, weakref.ref[Any]]] = {}  # address -> (its block, what is in it)
_construct = torch_name("_construct_storage_from_data_pointer")


def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """``aten::_pin_memory``: a copy in pinned memory."""
    nbytes = extent(tensor.shape, tensor.stride()) * tensor.dtype.itemsize
    if not nbytes:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    captured = current_stream().capture is not None
    block = take(nbytes)
    address = block.data_ptr()
    storage = _construct(address, torch.device("cpu"), nbytes)

    def freed(_: object) -> None:
        _pinned.pop(address, None)
        if not captured and current_stream().capture is None:  # what a capture allocates or frees is its graph's
            _free[block.nbytes()].append(block)

    _pinned[address] = (block, weakref.ref(storage, freed))
    return _over(storage, tensor).copy_(tensor)


def _over(storage: torch.UntypedStorage, like: torch.Tensor, offset: int = 0) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype, device="cpu").set_(storage, offset, like.shape, like.stride())


def places(mask: Any) -> list[torch.Tensor]:
    """Where a mask of the host is set, on the device: torch copies that from pinned memory, without waiting."""
    return [pin(each).to("sim", non_blocking=True) for each in mask.nonzero(as_tuple=True)]


def take(nbytes: int) -> torch.UntypedStorage:
    """A block of pinned memory for a request: a free one, or CUDA is asked, which a capture may forbid.

    Raises:
        torch.AcceleratorError: code 900, a capture forbids it on this thread and its stream is not captured.
    """
    size = 1 << (nbytes - 1).bit_length()
    if _free[size]:
        return _free[size].pop()
    if current_stream().capture is None:  # in its own captures torch allows it
        forbid_unsafe_call()
    return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def forget() -> None:
    """Keep no free blocks and nothing of what was registered, as in a fresh process."""
    _free.clear()
    _registered.clear()


def lasting(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same pinned memory that outlives what is in it now, as the address in a graph does."""
    storage = tensor.untyped_storage()
    block, _ = _pinned.get(storage.data_ptr(), (None, None))
    if block is None:
        return tensor
    return _over(block, tensor, int(tensor.storage_offset()))


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """``aten::is_pinned`` for host tensors."""
    address = tensor.untyped_storage().data_ptr()
    return address in _pinned or any(start <= address < start + size for start, size in _registered.items())


_registered: dict[int, int] = {}  # host memory that cudaHostRegister has pinned: address -> bytes


def register_host(address: int, nbytes: int) -> None:
    """Memory of the host is pinned where it is."""
    _registered[address] = nbytes


def unregister_host(address: int) -> None:
    """It is not pinned any more."""
    _registered.pop(address, None)
