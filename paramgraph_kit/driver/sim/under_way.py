"""Captures that are under way, and what the host may not do meanwhile.

A *capture* is one sequence: its nodes, the streams in it, and whether it is still valid. Its mode says which calls that
touch no stream of it are forbidden all the same, and on which threads.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from paramgraph_kit.trace.model import NodeKind

from .errors import cuda_error
from .first_use import use
from .graph import SimNode
from .rng import OUTSIDE, STEP, DeviceGenerator

if TYPE_CHECKING:
    from .allocator import PoolId
    from .machine import Pooled, Touched
    from .stream import Event, Stream

MODES = ("global", "thread_local", "relaxed")
DEBUG_MODES = ("default", "warn", "error")
PROTOTYPE = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"


class Capture:
    """One capture sequence: its nodes, the streams in it, and whether it is still valid."""

    def __init__(self, mode: str, origin: Stream, pool: PoolId) -> None:
        self.mode = mode
        self.origin = origin
        self.pool = pool
        self.thread = threading.get_ident()
        self.began = moment()
        self.nodes: list[SimNode] = []
        self.streams: list[Stream] = [origin]
        self.invalid = False
        self.ended = False
        self.kept_by_torch = False  # its pool: the end has failed, and torch gives it back to nobody
        self.offsets: dict[DeviceGenerator, int] = {}  # of its generators: how far each has moved inside
        self.left: set[DeviceGenerator] = set()  # of these: those that the end of another capture has taken out of it
        self.phantom: Any = None  # serves the allocations of SimDriver.record
        self.recorded: dict[int, tuple[weakref.ref[Event], Stream]] = {}  # events, by id, and where last
        self.touched: dict[int, Touched] = {}  # by address, what lies in no pool of graphs
        self.pooled: dict[int, Pooled] = {}  # by its owner, what lies in one
        self.scalar_fill: tuple[int, Any] | None = None  # (address, value) if the last node filled a 0-d tensor

    @property
    def random(self) -> bool:
        """Whether anything in it draws random numbers."""
        return any(self.offsets.values())

    def advance(self, generator: DeviceGenerator, steps: int = STEP) -> int:
        """How far a generator has moved, for an operation that moves it on by ``steps``."""
        self.follows(generator)
        offset = self.offsets[generator]
        self.offsets[generator] += steps
        return offset

    def follows(self, generator: DeviceGenerator) -> None:
        """Raise RuntimeError for a generator that the capture was not told of."""
        if generator not in self.offsets or generator in self.left:
            raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")

    def fail(self, code: int) -> RuntimeError:
        """Invalidate the capture and return the error of the call that did it."""
        self.invalid = True
        return cuda_error(code)

    def check(self) -> None:
        """Raise 901 if something before has invalidated the capture."""
        if self.invalid:
            raise cuda_error(901)

    def external(self, stream: Stream, event: Event, happens: bool) -> None:
        """Record a node at which an external event happens, or is waited for, whenever the graph runs."""

        def work(views: object, state: object) -> None:
            if happens:
                event.recorded_at = time.perf_counter()

        kind = NodeKind.EVENT_RECORD if happens else NodeKind.EVENT_WAIT
        self.nodes.append(SimNode(kind, str(kind), (), (), b"", work, stream.tail))
        stream.tail = (len(self.nodes) - 1,)

    def leave(self) -> None:
        """Take every stream out."""
        self.ended = True
        for stream in self.streams:
            stream.capture = None
            stream.tail = ()

    def settle(self) -> tuple[Event, ...]:
        """Record the events that outlive the capture again, outside of it; returns them."""
        kept = [(event, stream) for find, stream in self.recorded.values() if (event := find()) is not None]
        for event, stream in kept:
            event.record(None if stream == self.origin else stream)
        return tuple(event for event, _ in kept)

    def unjoined(self) -> bool:
        """Whether a forked stream's work is not an ancestor of the origin's."""
        seen: set[int] = set()
        todo = list(self.origin.tail)
        while todo:
            i = todo.pop()
            if i not in seen:
                seen.add(i)
                todo.extend(self.nodes[i].deps)
        return any(i not in seen for stream in self.streams for i in stream.tail)


class _Debug:
    """What a wait of the host is answered with: 0 nothing, 1 a warning, 2 an error."""

    mode = 0
    told = False  # that it is a prototype


_debug = _Debug()
moment = itertools.count().__next__  # orders the begins of captures and of regions that choose a pool
_open: list[Capture] = []


def open_captures() -> list[Capture]:
    """The captures under way in this process."""
    return _open


def forbid_in_capture(stream: Stream | None) -> None:
    """What a synchronisation does: 900 if its stream captures, or if the mode of a capture elsewhere forbids it here.

    ``stream`` None stands for a call on no stream in particular, such as an event's query.
    """
    if stream is not None:
        note_wait()  # torch looks at the mode before it calls CUDA
        if stream.capture is not None:
            stream.capture.check()
            raise stream.capture.fail(900)
    if (other := forbidding()) is not None:
        raise other.fail(900)  # which is what such a call is told of one that something has spoiled, too


def forbidding() -> Capture | None:
    """The capture whose mode forbids cudaMalloc, waits and their like on this thread, if there is one."""
    for capture in _open:
        mine = capture.thread == threading.get_ident()
        if capture.mode == "global" or (capture.mode == "thread_local" and mine):
            return capture
    return None


def forbid_drawing(generator: DeviceGenerator) -> None:
    """Raise RuntimeError where a capture under way has a generator that an operation outside of it moves on."""
    if any(generator in capture.offsets and generator not in capture.left for capture in _open):
        raise RuntimeError(OUTSIDE)


def forbid_unsafe_call() -> None:
    """What ``cudaMalloc`` and its like do: 900 where the mode of a capture forbids them in this thread."""
    forbid_in_capture(None)


def note_wait() -> None:
    """Warn or raise where ``set_sync_debug_mode`` asks for it, before the host waits for the device."""
    if _debug.mode == 1:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=3)
    elif _debug.mode == 2:
        raise RuntimeError("called a synchronizing CUDA operation")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Say what a call that makes the host wait does: 0 "default" nothing, 1 "warn", 2 "error"."""
    use()
    if isinstance(debug_mode, str):
        if debug_mode not in DEBUG_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = DEBUG_MODES.index(debug_mode)
    if not _debug.told:  # once in a process, whatever the mode
        _debug.told = True
        warnings.warn(PROTOTYPE, UserWarning, stacklevel=2)
    if debug_mode not in range(len(DEBUG_MODES)):
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    _debug.mode = debug_mode


def get_sync_debug_mode() -> int:
    """The mode that ``set_sync_debug_mode`` set, as a number."""
    use()
    return _debug.mode


def forbid_device_sync() -> None:
    """What ``synchronize()`` of the whole device does: 900 if any stream captures, whatever the mode."""
    for capture in _open:
        raise capture.fail(900)
