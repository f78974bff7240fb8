"""The simulated twin of ``torch.cuda``: the same names, so that one notebook cell runs on both.

It is also the module behind ``torch.sim``. What needs a clock or real hardware is not here, and says so by name.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from paramgraph_kit.trace.model import NodeKind

from .capture import CUDAGraph, recover
from .capturing import StreamContext, empty_cache, graph, graph_pool_handle, stream, synchronize
from .cuda_device import (
    amp,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    nvtx,
    set_device,
)
from .cuda_memory import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    device_memory_used,
    get_allocator_backend,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from .cuda_random import (
    generators_of_devices,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .cuda_runtime import CudaError, check_error, cudart, profiler
from .external import ExternalStream
from .first_use import use
from .graph import pack_scalar
from .graphed import make_graphed_callables
from .kernels import record
from .libraries import handle
from .stream import Event, Stream, set_current
from .stream import current_stream as stream_now
from .stream import default_stream as stream_without_name
from .under_way import get_sync_debug_mode, set_sync_debug_mode

__all__ = [
    "AcceleratorError",
    "CUDAGraph",
    "CudaError",
    "Event",
    "ExternalStream",
    "MemPool",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "check_error",
    "cudart",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "nvtx",
    "profiler",
    "recover",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "use_mem_pool",
]

OutOfMemoryError, AcceleratorError = torch.OutOfMemoryError, torch.AcceleratorError


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work goes to."""
    use()
    return stream_now(device)


def default_stream(device: Any = None) -> Stream:
    """The legacy default stream."""
    use()
    return stream_without_name(device)


def set_stream(stream: Stream | None) -> None:
    """Make ``stream`` current on this thread, if it is one."""
    if stream is not None:
        set_current(stream)


def is_current_stream_capturing() -> bool:
    """Whether the current stream is in a capture."""
    return stream_now().capture is not None


get_stream_from_external = ExternalStream


def current_blas_handle() -> int:
    """The number of cuBLAS's handle on this thread, which is made here if there is none."""
    use()
    return handle("cuBLAS")


def is_tf32_supported() -> bool:
    """True, as on the GPU whose captures are followed."""
    return True


def _lazy_init() -> None:
    """Use the device, as libraries do by this name before they ask for it."""
    use()


def _sleep(cycles: int) -> None:
    """A kernel that waits for ``cycles`` on a GPU, and for nothing here."""
    stream = stream_now()
    if stream.capture is not None:
        stream.capture.check()
        record(stream.capture, stream, NodeKind.KERNEL, "spin_kernel", [], pack_scalar(cycles), lambda *_: None)


def _is_in_bad_fork() -> bool:
    return False


class _Part:
    """One of torch.cuda's modules: its names, as the twin has them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(_twin, name, None) if name in vars(getattr(torch.cuda, self._name)) else None
        if found is None:
            raise AttributeError(f"the simulated device has no torch.cuda.{self._name}.{name}: {INSTEAD}")
        return found


_twin = sys.modules[__name__]
INSTEAD = "leave it out, or use a GPU"
graphs, memory, random, streams = _Part("graphs"), _Part("memory"), _Part("random"), _Part("streams")


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return generators_of_devices()
    if name == "_initialized":  # torch asks, where it keeps random states over a checkpoint's second run
        return is_initialized()
    if not name.startswith("_") and name in dir(torch.cuda):
        raise AttributeError(f"the simulated device has no torch.cuda.{name}: {INSTEAD}")
    raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}")
