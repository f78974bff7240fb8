"""Operations whose CUDA kernels wait for numbers from the device with some operands, and not with others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from paramgraph_kit.driver.asked import ASKS, sorts
from paramgraph_kit.driver.tensors import same_place

from .devices import check_devices
from .kernels import Kernel, pageable_copy_forbidden
from .moving import is_among
from .stream import current_stream
from .under_way import forbid_in_capture, note_wait

# By their overloads.
ASKING = (
    *("searchsorted.Tensor", "searchsorted.Tensor_out", "isin.Tensor_Tensor", "isin.Tensor_Tensor_out"),
    *("fake_quantize_per_channel_affine_cachemask", "_fake_quantize_learnable_per_channel_affine"),
    "_fake_quantize_learnable_per_tensor_affine",
)


def asking_kernel(op: Any) -> Callable[..., Any]:
    """An operation for some of whose operands the host waits."""
    asks, is_in = ASKS[op._opname], op._opname == "isin"
    run = Kernel(op, is_among if op._overloadname == "Tensor_Tensor" else None)
    host = partial(torch.zeros_like, device="cpu", memory_format=torch.contiguous_format)

    def call(*args: Any, **kwargs: Any) -> Any:
        times = asks(*args, **kwargs)
        if times and op._opname == "searchsorted" and current_stream().capture is not None:
            alike, named = tree_map_only(torch.Tensor, host, (args, kwargs))
            op(*alike, **named)  # raises for sizes and types, at which torch looks before it waits
        if is_in and not times and sorts(*args, **kwargs):  # put in order by a number of the host's
            pageable_copy_forbidden(current_stream())
        if times:
            forbid_in_capture(current_stream())
        for _ in range(1, times):
            note_wait()
        return run(*args, **kwargs)

    return call


def host_copy_kernel(op: Any, harmless: Callable[..., bool]) -> Callable[..., Any]:
    """An operation that copies a number to pageable host memory unless ``harmless(*args, **kwargs)``."""
    run = Kernel(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not harmless(*args, **kwargs) and op._opname == "bincount" and args[0].dtype is torch.uint8:
            forbid_in_capture(current_stream())  # none is below zero: only the largest is asked for
        elif not harmless(*args, **kwargs):
            pageable_copy_forbidden(current_stream(), after=op._opname)
            note_wait()  # once for the smallest value,
            note_wait()  # once for the largest
        return run(*args, **kwargs)

    return call


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """``aten::equal``: nobody waits where the sizes, or the same memory, answer already."""
    check_devices(_equal.op, (one, other), {})
    if one.shape != other.shape:
        return False
    if not one.numel() or same_place(one, other):
        return True
    forbid_in_capture(current_stream())
    return bool(_equal(one, other))


_equal = Kernel(torch.ops.aten.equal.default)
