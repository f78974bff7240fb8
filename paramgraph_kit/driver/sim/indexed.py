"""Indexing: what makes the host wait for a mask's count, and what it copies."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from .devices import TWO_DEVICES
from .kernels import Kernel, pageable_copy_forbidden
from .machine import DEVICE_NAME, machine
from .overlap import check_apart
from .pinned import places
from .stream import current_stream
from .twice import put
from .under_way import Capture, forbid_in_capture, note_wait

aten = torch.ops.aten
_VMAP = str(Path("torch", "_functorch", "vmap.py"))
PLACES = (torch.int64, torch.int32, torch.uint8, torch.bool)
UNLIKE = (
    "The shape of the mask {mask} at index {k} does not match the shape of the indexed tensor {shape} at index {at}"
)


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _check_types(indices: Sequence[torch.Tensor | None]) -> None:
    """Raise IndexError for numbers that are no places, at which torch looks before it copies any."""
    if any(i is not None and i.dtype not in PLACES for i in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _check_masks(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """Raise IndexError for a mask of another shape, at which torch looks before it counts."""
    at = 0
    for index in indices:
        if index is None or not _is_mask(index):
            at += 1
            continue
        for k, size in enumerate(index.shape):
            if at + k >= tensor.dim() or tensor.shape[at + k] != size:
                raise IndexError(UNLIKE.format(mask=list(index.shape), k=k, shape=list(tensor.shape), at=at + k))
        at += index.dim()


def index_kernel(op: Any) -> Callable[..., Any]:
    """``aten::index``: a mask makes the host wait for its count."""
    run = Kernel(op)

    def call(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], *rest: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu":
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({tensor.device})"
            )
        _check_types(indices)
        _check_masks(tensor, indices)
        if any(_is_mask(i) and i.device.type == DEVICE_NAME for i in indices if i is not None):
            forbid_in_capture(current_stream())
        elif current_stream().capture is not None:
            indices = [place for i in indices for place in (places(i) if _is_mask(i) else [i])]
        return run(tensor, indices, *rest, **kwargs)

    return call


def index_put_impl_(
    tensor: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """``aten::_index_put_impl_``: with a mask, only a number known to the host needs no wait (a masked fill)."""
    capture = current_stream().capture
    number = capture is not None and values.numel() == 1 and _host_number(capture, values) is not None
    if number and not any(_is_mask(i) for i in indices):
        pageable_copy_forbidden(current_stream())  # x[index] = 1.0: on CUDA the number is a tensor of the host
    _check_types(indices)
    _check_masks(tensor, indices)
    if capture is not None and not number:  # torch finds places of a mask of the host itself, and copies none of those
        indices = [place for i in indices for place in (places(i) if i is not None and _on_host(i) else [i])]
    if capture is not None and any(i.is_cpu and (_is_mask(i) or i.numel()) for i in indices if i is not None):
        pageable_copy_forbidden(current_stream())  # places are copied, and those of a mask found by the host first
    if values.device.type == "cpu" and values.dim():
        if capture is not None and any(_is_mask(i) for i in indices):
            forbid_in_capture(current_stream())
        _check_fit(tensor, indices, values)
        raise RuntimeError(TWO_DEVICES)
    if capture is not None and any(_is_mask(i) for i in indices):
        masks = [i for i in indices if i is not None]
        if len(masks) == 1 and values.numel() == 1 and not accumulate:
            value = _host_number(capture, values)
            if value is not None:
                mask = masks[0]
                lead = next(i for i, index in enumerate(indices) if index is not None)
                mask = mask.reshape((1,) * lead + tuple(mask.shape) + (1,) * (tensor.dim() - lead - mask.dim()))
                tensor.masked_fill_(mask.expand(tensor.shape), value)
                return tensor
        for each in (values, *masks):  # before a mask is counted
            check_apart(tensor, each)
        forbid_in_capture(current_stream())
    elif values.device.type == "cpu" or number:
        pageable_copy_forbidden(current_stream())  # x[index] = 1.0: on CUDA the number is a tensor of the host
    elif values.numel() > 1 and any(_is_mask(i) for i in indices):
        note_wait()
    elif capture is None and not accumulate and _is_by_places(tensor, indices, values):
        indices = [
            place for i in indices for place in (i.nonzero(as_tuple=True) if i is not None and _is_mask(i) else [i])
        ]
    _index_put(tensor, indices, values, accumulate, unsafe)
    return tensor


def _host_number(capture: Capture, values: torch.Tensor) -> Any:
    if values.device.type == "cpu":
        return values.item()
    if capture.scalar_fill is not None and capture.scalar_fill[0] == values.data_ptr():
        return capture.scalar_fill[1]  # x[mask] = 1.0: torch made a device tensor of the number just now
    return None


def is_number_of_host(capture: Capture, target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy is that of ``x[0, 1] = 5.0``: into a place of one number CUDA copies it, and fills others.

    Under ``torch.vmap`` there are as many such places as it maps over.
    """
    if source.dim() or capture.scalar_fill is None or capture.scalar_fill[0] != source.data_ptr():
        return False
    return not target.dim() or _in_vmap(sys._getframe(1))


def _in_vmap(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.endswith(_VMAP):
        frame = frame.f_back
    return frame is not None


def _on_host(index: torch.Tensor) -> bool:
    return index.is_cpu and _is_mask(index)


def _is_by_places(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor) -> bool:
    """Whether a number of the device's is put by a mask in a way of its own: the CPU's kernel fills, as with others."""
    masks = [i for i in indices if i is not None and _is_mask(i)]
    bytes_alone = any(i.dtype is torch.uint8 for i in masks) and not _is_a_number(values)
    return bool(masks) and values.numel() == 1 and (values.dtype != tensor.dtype or bytes_alone)


def note_number(made: torch.Tensor) -> None:
    """Remember a number that has become a tensor, as an assignment makes it first."""
    _made_of_number.append(weakref.ref(made))


def _is_a_number(values: torch.Tensor) -> bool:
    made = _made_of_number[0]() if _made_of_number else None
    return made is not None and made.data_ptr() == values.data_ptr()


_made_of_number: deque[weakref.ref[torch.Tensor]] = deque(maxlen=1)  # the last one


def _check_fit(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor) -> None:
    """Raise RuntimeError for values that do not fit what is indexed, at which torch looks before it does at devices."""
    host = partial(torch.zeros, dtype=values.dtype, device="cpu")
    places = [
        i if i is None or i.is_cpu else machine().twin(i) if _is_mask(i) else torch.zeros_like(i, device="cpu")
        for i in indices
    ]
    aten._index_put_impl_.default(host(tensor.shape), places, host(values.shape))


_index_put = Kernel(aten._index_put_impl_.default, doubt=put)
