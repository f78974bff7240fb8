"""Clocks of work: limits for trials end them where they took long, and not where other processes had the machine."""

from __future__ import annotations

import os
import threading
import time

WAITS = 4.0  # of time in which nothing of this process runs, as it waits for a GPU or a file, this part counts
_lock = threading.Lock()
_at = (time.monotonic(), time.process_time())
_worked = 0.0
_hindered: dict[int, float] = {}  # by thread, when it was last asked


def worked_s() -> float:
    """Seconds that this process has worked; only differences mean something.

    >>> begun = worked_s()
    >>> time.sleep(0.04)
    >>> 0.01 <= worked_s() - begun < 0.04
    True
    """
    global _at, _worked
    with _lock:
        now = time.monotonic(), time.process_time()
        passed, ran = now[0] - _at[0], now[1] - _at[1]  # of several threads more may have run than has passed
        waited = passed
        if passed > WAITS * ran:  # or others had the cores: that takes a while to ask, and is no waiting
            thread = threading.get_native_id()
            known, _hindered[thread] = _hindered.get(thread), hindered_s(thread)
            waited -= max(_hindered[thread] - known, 0.0) if known is not None else 0.0
        _at, _worked = now, _worked + max(min(ran, passed), waited / WAITS)
        return _worked


def hindered_s(thread: int) -> float:
    """Seconds in which a thread, by its native number, could run and others had all cores; zero where nobody tells."""
    try:  # Linux has it, and not each kernel
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)  # each call and trial asks several times
    except OSError:
        return 0.0
    try:
        return int(os.read(file, 128).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
    finally:
        os.close(file)


def unhindered_s(thread: int | None = None) -> float:
    """Seconds that have passed for a thread, without those in which it could run and others had all cores.

    Sleeps and what it waits for count, as on a clock. ``thread`` is its native number, or that of this one. Only
    differences mean something.

    >>> begun = unhindered_s()
    >>> time.sleep(0.04)
    >>> 0.03 <= unhindered_s() - begun
    True
    """
    return time.monotonic() - hindered_s(thread or threading.get_native_id())
