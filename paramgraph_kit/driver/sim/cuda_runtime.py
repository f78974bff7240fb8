"""The twin's ``cudart()``: the few calls of CUDA's runtime that torch hands on, and its errors."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .errors import CUDA_ERRORS
from .first_use import use
from .machine import machine
from .pinned import register_host, unregister_host
from .under_way import forbid_device_sync, forbid_unsafe_call


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
    use()
    return _calls


def _with_code(error: RuntimeError, code: int) -> None:
    named = f"cudaError.{code.name}" if isinstance(code, cudaError) else code
    RuntimeError.__init__(error, f"{_text(code)} ({named})")


# As torch calls it: an error of the runtime's, by its code.
CudaError = type("CudaError", (RuntimeError,), {"__init__": _with_code})


def check_error(res: int) -> None:
    """Raise CudaError for a result that is not success."""
    if res != SUCCESS:
        raise CudaError(res)


def _start() -> None:
    check_error(_calls.cudaProfilerStart())


def _stop() -> None:
    check_error(_calls.cudaProfilerStop())


@contextmanager
def _profile() -> Iterator[None]:
    try:
        _start()
        yield
    finally:
        _stop()


profiler = types.SimpleNamespace(start=_start, stop=_stop, profile=_profile)


class _Ranges(torch.autograd.profiler.emit_nvtx):
    """Torch's own waits for the device as it begins and ends; no profiler listens to what is between."""

    def __enter__(self) -> Any:
        if not self.enabled:
            return None
        if self.entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        self.entered = True
        forbid_device_sync()
        return self

    def __exit__(self, *_: object) -> bool | None:
        if not self.enabled:
            return None
        forbid_device_sync()
        return False


def install_ranges() -> None:
    """``torch.autograd.profiler.emit_nvtx``, which needs CUDA."""
    _Ranges.__name__ = _Ranges.__qualname__ = "emit_nvtx"
    torch.autograd.profiler.emit_nvtx = _Ranges  # type: ignore[misc]
