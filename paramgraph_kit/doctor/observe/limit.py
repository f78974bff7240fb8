"""A time limit for a call in this thread."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from paramgraph_kit.driver.work import unhindered_s

AGAIN_S = 0.25  # how often a call that goes on all the same is interrupted again
PATIENCE = 8  # how often a call that says "not now" is heard


class TimeUp(BaseException):
    """The call took too long."""


@contextmanager
def at_most(seconds: float, may_raise: Callable[[FrameType | None], bool]) -> Iterator[None]:
    """Raise TimeUp in the body after ``seconds``, unless ``may_raise``, told where it is, says not now.

    What other processes take of the machine does not count: a loaded one ends no call that would be quick.

    In the main thread a signal does it, which also ends sleeps; elsewhere Python's own interruption, which waits for
    the next bytecode. Neither ends a call into C that never returns, and an import is not interrupted: what is half
    imported stays so in this process.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        with _by_signal(seconds, _patient(may_raise)):
            yield
    else:
        with _by_thread(seconds, _patient(may_raise)):
            yield


def _patient(may_raise: Callable[[FrameType | None], bool]) -> Callable[[FrameType | None], bool]:
    refused = 0

    def ask(frame: FrameType | None) -> bool:
        nonlocal refused
        if _is_importing(frame):
            return False
        refused += 1
        return may_raise(frame) or refused > PATIENCE

    return ask


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _by_signal(seconds: float, may_raise: Callable[[FrameType | None], bool]) -> Iterator[None]:
    until = unhindered_s() + seconds

    def up(number: int, frame: FrameType | None) -> None:
        if unhindered_s() >= until and may_raise(frame):
            raise TimeUp

    before = signal.signal(signal.SIGALRM, up)
    started = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's alarm goes on, and rings at once if its time has come
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), 0.001), interval)


@contextmanager
def _by_thread(seconds: float, may_raise: Callable[[FrameType | None], bool]) -> Iterator[None]:
    thread, number, done = threading.get_ident(), threading.get_native_id(), threading.Event()
    until = unhindered_s() + seconds
    lock = threading.Lock()
    rung = False

    def ring() -> None:
        nonlocal rung
        wait = seconds
        while not done.wait(wait):
            with lock:
                late = unhindered_s(number) >= until
                if late and not done.is_set() and may_raise(sys._current_frames().get(thread)):
                    rung = True
                    _interrupt(thread)
            wait = AGAIN_S

    def stop() -> None:
        with lock:
            done.set()

    clock = threading.Thread(target=ring, name="diagnose: time limit", daemon=True)
    clock.start()
    try:
        yield
    finally:
        try:
            stop()
        except TimeUp:  # it rang while this waited for the lock
            stop()
        if rung:
            _let_interrupt(thread)
        clock.join()


def _interrupt(thread: int) -> None:
    """Python's own interruption of a thread; one that is under way is replaced."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeUp))


def _let_interrupt(thread: int) -> None:
    """Let what may still be under way to this thread arrive here, where nobody minds.

    It could be withdrawn, but CPython would go on looking for it for ever, and up to 3.11 never enter a function under
    a profiler again.
    """
    try:
        _interrupt(thread)
        while True:
            pass
    except TimeUp:
        pass
