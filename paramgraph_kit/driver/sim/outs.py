"""The memory of results, and of what is given for them: shared with what is read, too small, or a storage's own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.driver.tensors import bits_of, extent, lazily
from paramgraph_kit.driver.torch_names import torch_name

from .machine import CPU_KEY, DEVICE_NAME, SET_STORAGE, SWAP, machine
from .stream import note_leaf

META = torch.device("meta")
ALONE = 2  # who counts for a storage of one tensor: that, and the object in Python that was asked for


def new_like(value: torch.Tensor) -> torch.Tensor:
    """A device tensor with the layout and the lazy bits of a CPU or meta result."""
    if value.layout is not torch.strided or value.is_quantized:
        raise NotImplementedError(f"the simulated device has dense tensors only, not {value.layout}")
    stride = value.stride()
    if 0 in stride and value.numel() > 1:  # a result may not overlap itself
        stride = torch.empty(value.shape, device=META).stride()
    return lazily(machine().empty_strided(tuple(value.shape), stride, value.dtype), bits_of(value))


def on_device(value: torch.Tensor) -> torch.Tensor:
    """A device tensor with what a result of the CPU's kernel holds."""
    made = new_like(value)
    if value.is_cpu and value.is_contiguous() and not value._is_zerotensor():
        ctypes.memmove(made.data_ptr(), value.data_ptr(), value.nbytes)  # a third of what a copy of torch's takes
    else:
        machine().twin(made).copy_(value)
    return made


def shared_with_outs(
    flat: Sequence[Any], outs: Sequence[int], operands: Sequence[torch.Tensor]
) -> dict[int, torch.Tensor]:
    """CPU tensors, by the id of a device tensor, over copies of memory that an ``out=`` shares with other operands.

    Kernels refuse some of that, and resize no tensor that they read; which needs tensors that share theirs, too.
    """
    m = machine()
    into = [flat[i] for i in outs if isinstance(flat[i], torch.Tensor)]
    written = {x.untyped_storage().data_ptr() for x in into}
    found = {id(x): torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in into if not x.numel()}
    for place in written - {0}:
        users = [x for x in operands if x.untyped_storage().data_ptr() == place]
        if not users[1:]:
            continue
        nbytes = users[0].untyped_storage().nbytes()
        copy = m.arena.view(place, (nbytes,), (1,), torch.uint8).clone().untyped_storage()
        for x in users:
            view = torch.empty(0, dtype=x.dtype).set_(copy, x.storage_offset(), x.shape, x.stride())
            found[id(x)] = lazily(view, bits_of(x))
    return found


def fit_out(out: torch.Tensor, value: torch.Tensor) -> None:
    """Give an ``out=`` tensor the layout to which its operation has resized a stand-in."""
    if out.shape != value.shape:
        out.resize_(extent(value.shape, value.stride()))
        out.as_strided_(value.shape, value.stride())


def resize(tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """``resize_``: within the storage where it fits, otherwise onto a new one with the old bytes."""
    if tuple(size) == tuple(tensor.shape) and memory_format is None:
        return tensor
    if any(n < 0 for n in size):
        raise RuntimeError("numel: integer multiplication overflow")
    numel = math.prod(size)
    nbytes = (tensor.storage_offset() + numel) * tensor.dtype.itemsize
    old = tensor.untyped_storage()
    stride = torch.empty(tuple(size), device=META, memory_format=memory_format or torch.contiguous_format).stride()
    if nbytes <= old.nbytes():
        SET_STORAGE.redispatch(CPU_KEY, tensor, old, tensor.storage_offset(), size, stride)
        return tensor
    if hasattr(old, SWAP):
        resize_storage(old, int(nbytes))
    else:  # an older torch: the tensor moves alone
        if old.nbytes() and torch_name("_storage_Use_Count")(old._cdata) > ALONE:  # others would stay behind
            text = "the simulated device resizes a tensor that shares its memory with torch 2.13, not"
            raise NotImplementedError(f"{text} {torch.__version__}: clone it before")
        old = _grown(old, int(nbytes))
    SET_STORAGE.redispatch(CPU_KEY, tensor, old, tensor.storage_offset(), size, stride)
    return tensor


def set_storage(
    tensor: torch.Tensor,
    storage: torch.UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    """``set_`` onto a part of a storage, which grows where that ends beyond it."""
    if tensor.requires_grad:
        note_leaf(tensor)
    steps = tuple(stride) or torch.empty(tuple(size), device=META).stride()
    as_it_is = tuple(size) == tensor.shape and steps == tensor.stride()  # torch resizes nothing then [H200]
    if (
        storage.device.type == DEVICE_NAME
        and not as_it_is
        and all(each >= 0 for each in (offset, *size, *steps))
        and 0 not in size
    ):
        nbytes = (offset + extent(size, steps)) * tensor.dtype.itemsize
        if nbytes > storage.nbytes():
            resize_storage(storage, nbytes)
    SET_STORAGE.redispatch(CPU_KEY, tensor, storage, offset, size, stride)
    return tensor


def set_empty(tensor: torch.Tensor) -> torch.Tensor:
    """``set_`` onto nothing."""
    return set_storage(tensor, machine().storage(0), 0, (0,))


def resize_storage(storage: torch.UntypedStorage, nbytes: int) -> None:
    """``UntypedStorage.resize_``: fresh memory under every tensor over it, with the bytes that fit copied there."""
    machine().move(storage, _grown(storage, nbytes))


def _grown(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
    """Fresh memory with the bytes of a storage that fit."""
    m = machine()
    fresh = m.storage(nbytes)
    kept = min(nbytes, storage.nbytes())
    if kept:
        places = (fresh.data_ptr(), storage.data_ptr())
        target, source = (m.tensor_at(place, kept, (kept,), (1,), 0, torch.uint8) for place in places)
        target.copy_(source)
    return fresh


def signature(value: Any) -> Any:
    """What of an argument a kernel may have something against, but for a tensor's numbers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.is_meta, bits_of(value)
    return type(value), str(value)


def as_meta(value: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same layout, which holds no memory."""
    if value.is_meta:
        return value
    return lazily(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META), bits_of(value))


def stand_in(meta: torch.Tensor) -> torch.Tensor:
    """A CPU tensor of the same layout: zeros, which every index may be, and ones where they give a matrix full rank."""
    size, stride = meta.shape, meta.stride()
    found = torch.zeros(extent(size, stride), dtype=meta.dtype, device="cpu").as_strided(size, stride)
    if meta.dim() >= 2 and (meta.is_floating_point() or meta.is_complex()) and 0 not in stride:
        found.diagonal(dim1=-2, dim2=-1).fill_(1)
    return lazily(found, bits_of(meta))
