"""Operations whose CUDA kernels wait for numbers from the device with some operands, and not with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kernels import Kernel, pageable_copy_forbidden
from .stream import current_stream
from .under_way import forbid_in_capture, note_wait


def _zero_points_asked(*args: Any, **_: Any) -> int:
    """Whether they are in range: the smallest and the largest."""
    return 0 if args[2].is_floating_point() else 2


def _sorts(elements: torch.Tensor, tests: torch.Tensor, *, assume_unique: bool = False, **_: Any) -> int:
    """How often a sorted search waits for the number of those that differ; few tests are compared one by one."""
    if tests.numel() < 10 * elements.numel() ** 0.145 or not elements.numel():
        return 0
    if assume_unique:  # what is sorted then is put in order by a number of the host's
        pageable_copy_forbidden(current_stream())
        return 0
    return 2


# How often they wait, of their operands.
ASKING: dict[str, Callable[..., int]] = {
    **dict.fromkeys(
        ("searchsorted.Tensor", "searchsorted.Tensor_out"),
        lambda *_, sorter=None, **__: int(sorter is not None and sorter.numel() > 0),
    ),
    **dict.fromkeys(("isin.Tensor_Tensor", "isin.Tensor_Tensor_out"), _sorts),
    **dict.fromkeys(
        ("fake_quantize_per_channel_affine_cachemask", "_fake_quantize_learnable_per_channel_affine"),
        _zero_points_asked,
    ),
    "_fake_quantize_learnable_per_tensor_affine": lambda *_, **__: 2,
}


def asking_kernel(op: Any, asks: Callable[..., int]) -> Callable[..., Any]:
    """An operation after some of whose operands the host waits ``asks(*operands)`` times."""
    run = Kernel(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        times = asks(*args, **kwargs)
        if times:
            forbid_in_capture(current_stream())
        for _ in range(1, times):
            note_wait()
        return run(*args, **kwargs)

    return call
