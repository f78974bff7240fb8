"""Fourier transforms: cuFFT's plans, which the first transform of a precision loads, and its half precision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .kernels import Kernel
from .under_way import forbidding

HALVES = {torch.float16: torch.float32, torch.complex32: torch.complex64}  # and in what they are computed
_NARROW = {torch.float32: torch.float16, torch.complex64: torch.complex32}
ODD = (
    "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a signal "
    "size of{sizes}"
)
TRANSFORMS = ("_fft_c2c", "_fft_r2c", "_fft_c2r")  # that cuFFT makes
_AT_ONCE = 3  # dimensions
_PARTS = ("", "2", "n")
NAMES = tuple(f"fft_{kind}fft{part}" for kind in ("", "i", "r", "ir", "h", "ih") for part in _PARTS)


class _Plans:
    """The precisions that cuFFT has transformed in this process: other layouts of the same run in captures [H200]."""

    def __init__(self) -> None:
        self.made: set[torch.dtype] = set()


_plans = _Plans()
_here = threading.local()


def forget_plans() -> None:
    """Have no plans, as in a fresh process."""
    _plans.made.clear()


def transform_kernel(op: Any) -> Callable[..., Any]:
    """A Fourier transform: the first one of a precision loads what it needs, which a capture may forbid."""
    run = Kernel(op, _of_a_copy if op is torch.ops.aten._fft_c2r.default else None)

    def call(tensor: torch.Tensor, dim: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        plan = tensor.dtype.to_real()
        if getattr(_here, "half", False):
            plan = torch.float16
            sizes = [tensor.shape[each] for each in dim]
            if op._opname == "_fft_c2r":
                sizes[-1] = args[1]
            if any(size & (size - 1) for size in sizes):
                raise RuntimeError(ODD.format(sizes=sizes))
        if not tensor.numel():
            raise RuntimeError("cuFFT error: CUFFT_INVALID_SIZE")
        if plan not in _plans.made and not getattr(_here, "half", False):  # halves load nothing [H200]
            if (capture := forbidding()) is not None:
                capture.fail(900)
                alone = all(tensor.shape[each] == 1 for each in dim)  # a signal of one number has another plan
                raise RuntimeError(f"cuFFT error: CUFFT_{'INVALID_SIZE' if alone else 'INTERNAL_ERROR'}")
            _plans.made.add(plan)
        return run(tensor, dim, *args, **kwargs)

    return call


def _of_a_copy(tensor: torch.Tensor, dim: Sequence[int], *args: Any) -> torch.Tensor:
    """``aten::_fft_c2r``: cuFFT's writes over what it reads, which is copied before, and lies in rows then."""
    at_once = len(dim) == 1 or (len(dim) <= _AT_ONCE and [*dim[:2]] != [0, 1])
    found: torch.Tensor = torch.ops.aten._fft_c2r.default(tensor, dim, *args)
    return found.contiguous() if at_once else found


def half_kernel(op: Any) -> Callable[..., Any]:
    """One of torch.fft's: of halves it is computed in single precision, by cuFFT's rules for halves."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype not in HALVES:
            return op.decompose(tensor, *args, **kwargs)
        before, _here.half = getattr(_here, "half", False), True
        try:
            found = op.decompose(tensor.to(HALVES[tensor.dtype]), *args, **kwargs)
        finally:
            _here.half = before
        return found.to(_NARROW[found.dtype])

    return call


def install_transforms(library: Any) -> None:
    """Register torch.fft's own above autograd, for what they are made of has gradients of its own, and below."""
    for name in NAMES:
        if hasattr(torch.ops.aten, name):
            op = getattr(torch.ops.aten, name).default
            for key in ("PrivateUse1", "AutogradPrivateUse1"):
                library.impl(name, half_kernel(op), key)
