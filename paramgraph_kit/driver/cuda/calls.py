"""Calls of the CUDA driver that raise instead of returning a status."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from cuda.bindings import driver as cu

from paramgraph_kit.trace.errors import DriverCallError


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of cuda-bindings; return its value(s), raise DriverCallError on failure."""
    status, *values = function(*args)
    if status != cu.CUresult.CUDA_SUCCESS:
        raise DriverCallError(function.__name__, int(status), status.name)
    return None if not values else values[0] if len(values) == 1 else tuple(values)


@contextmanager
def relaxed() -> Iterator[None]:
    """Calls of this thread that a capture, somebody else's too, would forbid, and be spoiled by."""
    mode = call(cu.cuThreadExchangeStreamCaptureMode, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        call(cu.cuThreadExchangeStreamCaptureMode, mode)


class Owned:
    """A handle of the driver that is released when it is closed or forgotten; not at exit, when CUDA may be gone.

    The collector may forget it in the middle of the user's own capture.
    """

    def __init__(self, raw: Any, release: Callable[[Any], Any]) -> None:
        self.raw = raw
        self._end = weakref.finalize(self, _released, release, raw)
        self._end.atexit = False

    def close(self) -> None:
        """Release the handle now, once."""
        self._end()


def _released(release: Callable[[Any], Any], raw: Any) -> None:
    with suppress(DriverCallError), relaxed():  # a lost context has nothing to give back
        release(raw)


@cache
def library() -> ctypes.CDLL:
    """libcuda through ctypes, for the launch path: cuda-bindings builds an argument object per call."""
    return ctypes.CDLL("libcuda.so.1")


def is_device_address(value: int) -> bool:
    """Whether CUDA knows a value as an address (device, managed or pinned memory)."""
    kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return bool(value > 1 << 32 and cu.cuPointerGetAttribute(kind, value)[0] == cu.CUresult.CUDA_SUCCESS)
