"""Hooks on the calls of this thread that give a profiler its place back, and leave the garbage collector out."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_hooks: list[Any] = []  # those of ``profiled``, which ask for frames of the user's files alone


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
    _hooks.append(hook)
    sys.setprofile(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)
        set_profile(before)


def unseen(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """A mode's ``__torch_dispatch__`` of whose work no such hook is told: torch's operations run nothing of a user's.

    On the simulated device each of them is a hundred calls.
    """

    @functools.wraps(dispatch)
    def handled(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        hook = sys.getprofile()
        if hook is None or types or getattr(func, "namespace", "") != "aten" or not any(hook is h for h in _hooks):
            return dispatch(mode, func, types, args, kwargs)  # a class of tensors may be the user's, as an operation
        sys.setprofile(None)
        try:
            return dispatch(mode, func, types, args, kwargs)
        finally:
            sys.setprofile(hook)

    return handled


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
