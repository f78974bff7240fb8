"""The twin's ``cudart()``: the few calls of CUDA's runtime that torch hands on, and its errors."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from .errors import CUDA_ERRORS
from .machine import machine
from .pinned import register_host, unregister_host
from .under_way import forbid_unsafe_call


class cudaError(enum.IntEnum):  # noqa: N801 - as CUDA calls it
    """The codes that torch names; others have none."""

    success = 0
    errorMemoryAllocation = 2  # noqa: N815
    errorInitializationError = 3  # noqa: N815

    @classmethod
    def _missing_(cls, value: object) -> cudaError:
        found = int.__new__(cls, int(str(value)))
        found._name_, found._value_ = "???", int(found)
        return found


SUCCESS = cudaError(0)
# A message of one of those that torch does not raise here.
_TEXTS = {0: "no error", 2: "out of memory", 3: "initialization error"}


def _text(error: int) -> str:
    code = int(error)
    return _TEXTS.get(code) or CUDA_ERRORS.get(code, ("", "unrecognized error code"))[1]


def _profiler() -> Any:
    """Torch hands on what CUDA returns, and raises nothing: a capture is spoiled without a word."""
    try:
        forbid_unsafe_call()
    except torch.AcceleratorError as error:
        return cudaError(error.error_code)  # type: ignore[attr-defined]  # torch sets it in C++
    return SUCCESS


def _host_register(address: int, nbytes: int, flags: int) -> Any:
    forbid_unsafe_call()
    register_host(address, nbytes)
    return SUCCESS


def _host_unregister(address: int) -> Any:
    forbid_unsafe_call()
    unregister_host(address)
    return SUCCESS


def _memory(device: int) -> tuple[int, int]:
    arena = machine().arena
    return arena.capacity - arena.mapped, arena.capacity


_calls = types.ModuleType("torch._C._cudart", "CUDA's runtime, as far as torch hands it on; simulated.")
vars(_calls).update(
    cudaError=cudaError,
    cudaGetErrorString=_text,
    cudaHostRegister=_host_register,
    cudaHostUnregister=_host_unregister,
    cudaMemGetInfo=_memory,
    cudaProfilerStart=_profiler,
    cudaProfilerStop=_profiler,
)


def cudart() -> types.ModuleType:
    """The runtime, as far as torch hands it on."""
    return _calls


def _with_code(error: RuntimeError, code: int) -> None:
    RuntimeError.__init__(error, f"{_text(code)} ({int(code)})")


# As torch calls it: an error of the runtime's, by its code.
CudaError = type("CudaError", (RuntimeError,), {"__init__": _with_code})


def check_error(res: int) -> None:
    """Raise CudaError for a result that is not success."""
    if res != SUCCESS:
        raise CudaError(res)
