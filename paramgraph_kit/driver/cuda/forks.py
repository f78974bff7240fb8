"""Streams and events of the user's that take part in a capture of ours.

In a capture a second stream is a branch and an event a dependency, and a launch has neither. Who launches must
therefore order the streams themselves, and record again what somebody may wait for outside.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from unittest import mock

import torch
from cuda.bindings import driver as cu

from paramgraph_kit.driver.api import TIMED_EVENT
from paramgraph_kit.driver.cuda.calls import call, library
from paramgraph_kit.trace.errors import RefusedError

_POOL_STREAMS = 32  # torch hands out its streams in turn from so many of each priority
_PRIORITIES = (0, -1, -2, -3)
_ACTIVE = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


@cache
def capture_stream(device: int) -> torch.cuda.Stream:
    """Where captures of ours begin: none of torch's pool, where one may be the user's, whose branch would be none."""
    with torch.cuda.device(device):
        torch.cuda.mem_get_info(device)  # this thread has a context now
        made = call(cu.cuStreamCreate, int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    return torch.cuda.ExternalStream(int(made), device)


@cache
def known_streams(device: int) -> tuple[torch.cuda.Stream, ...]:
    """All streams that torch gives to whoever makes one, and ours; asked for once, before a capture."""
    pool = [torch.cuda.Stream(device, priority=p) for p in _PRIORITIES for _ in range(_POOL_STREAMS)]
    return *pool, capture_stream(device)


def captures(stream: int) -> bool:
    """Whether a stream is part of any capture."""
    return bool(cu.cuStreamIsCapturing(cu.CUstream(stream))[1] == _ACTIVE)


def stream_of(handle: int, device: torch.device | int) -> torch.cuda.Stream:
    """The stream with a handle."""
    if handle == 0:  # ExternalStream(0) is not the default stream but any of the pool
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)


class Forks:
    """What one capture on ``stream`` brings in: other streams, and events that are still there afterwards."""

    def __init__(self, device: int, stream: torch.cuda.Stream) -> None:
        self.streams: tuple[int, ...] = ()
        self._stream = stream
        self._kept: list[tuple[Any, Any]] = []
        self._candidates = dict.fromkeys(each.cuda_stream for each in known_streams(device))
        # By id, with the stream of the last record. Held: torch 2.11 leaves weak references to dead events dangling.
        self._events: dict[int, tuple[Any, Any]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what is recorded and who waits, in every thread: autograd runs hooks in one of its own."""
        record, wait = torch.cuda.Event.record, torch.cuda.Event.wait

        def noting(event: Any, stream: Any = None) -> None:
            where = torch.cuda.current_stream() if stream is None else stream
            record(event, where)
            if captures(handle := _handle(where)):
                self._candidates[handle] = None
                self._events[id(event)] = event, where

        def following(event: Any, stream: Any = None) -> None:
            where = torch.cuda.current_stream() if stream is None else stream
            wait(event, where)
            self._candidates[_handle(where)] = None

        with mock.patch.multiple(torch.cuda.Event, record=noting, wait=following):
            yield

    def look(self) -> None:
        """Find the streams, while the capture is under way."""
        mine, others = self._stream.cuda_stream, [each for each in self._candidates if captures(each)]
        self.streams = tuple(each for each in others if each != mine and _capture_of(each) == _capture_of(mine))

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        """After the capture: what it left in events is of no use to anybody, so record them where they were."""
        here = torch.cuda.current_stream(self._stream.device)
        alone = _holders((torch.cuda.Event(), None))
        self._kept = [entry for entry in self._events.values() if _holders(entry) > alone]
        self._events.clear()
        for event, stream in self._kept:
            with suppress(RuntimeError):
                event.record(here if stream == self._stream else stream)

    def kept(self) -> tuple[Any, ...]:
        """Events that somebody outside may wait for.

        Raises:
            RefusedError: one of them measures time, and inside of a launch there is none to be had.
        """
        events = tuple(event for event, _ in self._kept)
        if any(map(_measures_time, events)):
            raise RefusedError(TIMED_EVENT)
        return events


def _holders(entry: tuple[Any, Any]) -> int:
    return sys.getrefcount(entry[0])


def _handle(stream: Any) -> int:
    """The raw handle of any kind of stream."""
    if not hasattr(stream, "cuda_stream"):  # torch.Stream, which names no device's
        of = {"stream_id": stream.stream_id, "device_index": stream.device_index, "device_type": stream.device_type}
        stream = torch.cuda.Stream(**of)
    return int(stream.cuda_stream)


def _capture_of(stream: int) -> int:
    """The number of the capture that a stream is part of."""
    status, number = ctypes.c_int(0), ctypes.c_uint64(0)
    get_info, nothing = library().cuStreamGetCaptureInfo_v2, None
    get_info(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), nothing, nothing, nothing)
    return number.value


def _measures_time(event: Any) -> bool:
    try:
        event.elapsed_time(event)
    except ValueError:  # "must be created with argument 'enable_timing=True'"
        return False
    except RuntimeError:  # it does, and is not there yet
        return True
    return True
