"""CUDA's errors, with its codes and its words, as torch raises them.

Real CUDA makes error 700 sticky (the context is lost); here the machine survives, so that a notebook goes on.
"""

from __future__ import annotations

from typing import Any

import torch

_TAIL = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)

CUDA_ERRORS: dict[int, tuple[str, str]] = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    401: ("cudaErrorIllegalState", "the operation cannot be performed in the present state"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    710: ("cudaErrorAssert", "device-side assert triggered"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    902: ("cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"),
    903: ("cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"),
    904: ("cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"),
    905: ("cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"),
    906: (
        "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    907: ("cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
    908: (
        "cudaErrorStreamCaptureWrongThread",
        "attempt to terminate a thread-local capture sequence from another thread",
    ),
}

PAGEABLE_COPY = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)


def cuda_error(code: int) -> RuntimeError:
    """The ``torch.AcceleratorError`` of a CUDA error code, with ``error_code`` set."""
    name, text = CUDA_ERRORS[code]
    error = torch.AcceleratorError(
        f"CUDA error: {text}\nSearch for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
        f"group__CUDART__TYPES.html for more information.\n{_TAIL}"
    )
    error.error_code = code  # type: ignore[attr-defined]  # torch sets it in C++
    return error


def asserted(found: Exception) -> RuntimeError:
    """The error of a replayed kernel that has found a value which it cannot take, and what this one says of it."""
    error = cuda_error(710)
    error.args = (f"{error.args[0]}The simulated kernel says: {found}\n",)
    return error


def out_of_memory(nbytes: int, total: int, reserved: int, allocated: int) -> RuntimeError:
    """The ``torch.OutOfMemoryError`` of an allocation that found no room."""

    def mib(n: int) -> str:
        return f"{n / 2**20:.2f} MiB" if n < 2**30 else f"{n / 2**30:.2f} GiB"

    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {mib(nbytes)}. The simulated device has a total capacity of "
        f"{mib(total)} of which {mib(max(total - reserved, 0))} is free. Of the allocated memory {mib(allocated)} is "
        f"allocated by PyTorch, and {mib(reserved - allocated)} is reserved by PyTorch but unallocated."
    )


def device_index(device: Any) -> int:
    """The number of a device that torch.cuda is given; raises ValueError for one of another kind."""
    if device is None or isinstance(device, int):
        return device or 0
    found = torch.device(device)
    if found.type in ("cpu", "meta"):
        raise ValueError(f"Expected a cuda device, but got: {found}")
    return found.index or 0


def require_device(device: Any) -> None:
    """Raise error 101 for a device that is not there: there is one."""
    if device_index(device) > 0:
        raise cuda_error(101)


def has_none(given: Any, name: str) -> AttributeError:
    """What Python answers where torch asks an object of another class for a name that it has not."""
    return AttributeError(f"{type(given).__name__!r} object has no attribute {name!r}")


def missing(kind: str, name: str) -> AttributeError:
    """What an object answers that a name of torch.cuda's is asked of, which the simulated device has not."""
    return AttributeError(f"the simulated device's {kind} has no {name}: leave it out, or use a GPU")
