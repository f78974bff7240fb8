"""Hooks on the calls of this thread that give a profiler its place back, and leave the garbage collector out."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


def set_profile(hook: Any) -> None:
    """``sys.setprofile``, also for what ``sys.getprofile`` returned where a profiler written in C (cProfile) ran."""
    if hook is None or callable(hook):
        sys.setprofile(hook)
    else:
        hook.enable()


@contextmanager
def profiled(hook: Any) -> Iterator[None]:
    """Call a hook at what this thread does in the block, and give the profiler that was there its place back."""
    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        yield
    finally:
        set_profile(before)


@dataclass(slots=True)
class Collector:
    """Whether the garbage collector runs on this thread, its callbacks and the finalizers that it calls included."""

    runs: bool = False


@contextmanager
def collector() -> Iterator[Collector]:
    """Know in the block when the collector runs: where it happens to is no part of the code that it interrupts."""
    found, thread = Collector(), threading.get_ident()

    def first(phase: str, _information: object) -> None:
        if phase == "start" and threading.get_ident() == thread:
            found.runs = True

    def last(phase: str, _information: object) -> None:
        if phase == "stop" and threading.get_ident() == thread:
            found.runs = False

    gc.callbacks.insert(0, first)
    gc.callbacks.append(last)
    try:
        yield found
    finally:
        gc.callbacks.remove(first)
        gc.callbacks.remove(last)
