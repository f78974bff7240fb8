"""torch's switches that kernels depend on, each with values to switch between: what a graph must not outlive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

Value = Callable[[], AbstractContextManager[Any]]


@contextlib.contextmanager
def attribute(holder: Any, name: str, value: Any) -> Any:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextlib.contextmanager
def called(setter: Callable[[Any], Any], value: Any, before: Any) -> Any:
    setter(value)
    try:
        yield
    finally:
        setter(before)


def attributes(holder: Any, name: str, *values: Any) -> tuple[Value, ...]:
    return tuple(lambda value=value: attribute(holder, name, value) for value in values)


def modes(kind: str) -> dict[str, tuple[Value, ...]]:
    """Switches that mean something on any device."""

    def autocast(dtype: torch.dtype) -> Value:
        return lambda: torch.autocast(kind, dtype=dtype)

    return {
        "grad mode": (nullcontext, torch.no_grad, torch.inference_mode),
        "autocast": (nullcontext, *map(autocast, (torch.bfloat16, torch.float16))),
        "deterministic algorithms": tuple(
            lambda on=on: called(torch.use_deterministic_algorithms, on, False)
            for on in (False, True)
        ),
        "default dtype": tuple(
            lambda dtype=dtype: called(torch.set_default_dtype, dtype, torch.float32)
            for dtype in (torch.float32, torch.float64)
        ),
    }  # fmt: skip


def libraries() -> dict[str, tuple[Value, ...]]:
    """Switches of CUDA's libraries."""
    matmul = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn  # in part untyped

    def attention(*backends: SDPBackend) -> Value:
        return lambda: sdpa_kernel(list(backends))

    return {
        "TF32 in products": attributes(matmul, "fp32_precision", "ieee", "tf32"),
        "TF32 in convolutions": attributes(cudnn.conv, "fp32_precision", "ieee", "tf32"),
        "half-precision sums": attributes(matmul, "allow_fp16_reduced_precision_reduction", True, False),
        "bfloat16 sums": attributes(matmul, "allow_bf16_reduced_precision_reduction", True, False),
        "half-precision accumulation": attributes(matmul, "allow_fp16_accumulation", False, True),
        "cuDNN": attributes(cudnn, "enabled", True, False),
        "cuDNN benchmark": attributes(cudnn, "benchmark", False, True),
        "cuDNN determinism": attributes(cudnn, "deterministic", True, False),
        "attention": (
            attention(SDPBackend.MATH),
            attention(SDPBackend.EFFICIENT_ATTENTION),
            attention(SDPBackend.FLASH_ATTENTION, SDPBackend.MATH),
        ),
        "BLAS": tuple(
            lambda name=name: called(torch.backends.cuda.preferred_blas_library, name, "default")
            for name in ("cublas", "cublaslt")
        ),
    }
