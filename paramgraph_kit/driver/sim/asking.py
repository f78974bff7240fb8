"""Operations whose CUDA kernels wait for numbers from the device with some operands, and not with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.driver.asked import ASKS, sorts
from paramgraph_kit.driver.tensors import same_place

from .devices import check_devices
from .kernels import Kernel, pageable_copy_forbidden
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
    run, asks, is_in = Kernel(op), ASKS[op._opname], op._opname == "isin"

    def call(*args: Any, **kwargs: Any) -> Any:
        times = asks(*args, **kwargs)
        if is_in and not times and sorts(*args, **kwargs):  # put in order by a number of the host's
            pageable_copy_forbidden(current_stream())
        if times:
            forbid_in_capture(current_stream())
        for _ in range(1, times):
            note_wait()
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
