"""The twins of what a capture is made with: ``torch.cuda.graph``, ``stream``, ``synchronize``, the pools' handles."""

from __future__ import annotations

import gc
from typing import Any

import torch

from .allocator import PoolId
from .capture import CUDAGraph
from .errors import missing, require_device
from .first_use import use
from .machine import machine
from .stream import Before, Stream, entered, leave
from .under_way import forbid_device_sync, forbid_in_capture, open_captures


class StreamContext:
    """What ``stream(s)`` returns: makes a stream current for the body of ``with``."""

    def __init__(self, stream: Stream | None) -> None:
        use()  # torch asks which device is current
        self.stream = stream
        self._before: Before | None = None

    def __enter__(self) -> None:
        if self.stream is not None and self.stream.device is not None:  # torch asks for its device first
            self._before = entered(self.stream)

    def __exit__(self, *args: object) -> None:
        if self._before is not None:
            leave(self._before)


def stream(stream: Stream | None) -> StreamContext:
    """Make ``stream`` current for the body of ``with``."""
    return StreamContext(stream)


def synchronize(device: Any = None) -> None:
    """Wait for the device; raises 900 in a capture."""
    use()
    require_device(device)
    forbid_device_sync()


def empty_cache() -> None:
    """Give unused segments back to the device; 900 where there is one and a capture forbids cudaFree on this thread."""
    allocator = machine().allocator
    if open_captures() and next(allocator.unused(), None) is not None:
        forbid_in_capture(None)
    allocator.empty_cache()


def graph_pool_handle() -> PoolId:
    """A fresh private pool's id, to share between graphs."""
    return machine().allocator.new_pool_id(mine=True)


class graph:  # noqa: N801 - the name of torch.cuda.graph
    """The twin of ``torch.cuda.graph``: captures the body of ``with`` on a side stream.

    Like torch's it handles no exception: where the capture was invalidated, ``capture_end`` raises 901 over the real
    error, and the capture stream stays current.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: PoolId | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
        annotation_config: Any = None,
    ) -> None:
        for option, used in (
            ("enable_annotations", enable_annotations),
            ("check_input_liveness", check_input_liveness),
            ("annotation_config", annotation_config),
        ):
            if used:
                raise missing("graph", option)
        kind = type(self)  # a class made of this one has a stream of its own, where this has none yet
        if stream is None and kind.default_capture_stream is None:
            kind.default_capture_stream = Stream()
            kind.default_capture_stream.captures = True
        self.pool = () if pool is None else (pool,)
        self.capture_stream = stream or kind.default_capture_stream
        assert self.capture_stream is not None
        self.stream_ctx = StreamContext(self.capture_stream)
        self.cuda_graph = cuda_graph
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        synchronize()
        if torch.compiler.config.force_cudagraph_gc:
            gc.collect()
        empty_cache()
        self.stream_ctx.__enter__()
        pool = self.pool[0] if self.pool else None
        self.cuda_graph.capture_begin(pool=pool, capture_error_mode=self.capture_error_mode)

    def __exit__(self, *args: object) -> None:
        self.cuda_graph.capture_end()
        self.stream_ctx.__exit__(*args)
