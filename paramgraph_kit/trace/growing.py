"""Which traces are still being recorded, so that an open view knows when to look again and when to stop."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from paramgraph_kit.trace.model import Trace

_lock = threading.Lock()
_growing: list[tuple[Trace, list[Callable[[], None]]]] = []  # by identity: traces compare by what is in them
_latest: weakref.ref[Trace] | None = None


def begin(trace: Trace) -> None:
    """``trace`` is being recorded from now on."""
    global _latest
    with _lock:
        _growing.append((trace, []))
        _latest = weakref.ref(trace)


def latest() -> Trace | None:
    """The trace that was begun last, if somebody still has it."""
    return _latest() if _latest is not None else None


def end(trace: Trace) -> None:
    """``trace`` is complete; whoever asked is told, on this thread, before this returns."""
    told: list[Callable[[], None]] = []
    with _lock:
        for entry in [entry for entry in _growing if entry[0] is trace]:
            _growing[:] = [other for other in _growing if other is not entry]
            told += entry[1]
    for tell in told:
        tell()


def is_growing(trace: Trace) -> bool:
    """Whether ``trace`` is being recorded now.

    >>> from paramgraph_kit.trace import Origin, Source
    >>> trace = Trace(Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20"))
    >>> begin(trace); is_growing(trace)
    True
    >>> end(trace); is_growing(trace)
    False
    """
    with _lock:
        return any(entry[0] is trace for entry in _growing)


def when_complete(trace: Trace, tell: Callable[[], None]) -> bool:
    """Call ``tell`` once when ``trace`` is complete; False, and nothing is kept, if it is so already."""
    with _lock:
        for known, calls in _growing:
            if known is trace:
                calls.append(tell)
                return True
    return False
