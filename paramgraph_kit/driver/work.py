"""Clocks of work: limits for trials end them where they took long, and not where other processes had the machine."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

WAITS = 4.0  # of time in which nothing of this process runs, as it waits for a GPU or a file, this part counts
_lock = threading.Lock()
_at = (time.monotonic(), time.process_time())
_worked = 0.0


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
        _at, _worked = now, _worked + max(min(ran, passed), passed / WAITS)
        return _worked


def unhindered_s(thread: int | None = None) -> float:
    """Seconds that have passed for a thread, without those in which it could run and others had all cores.

    Sleeps and what it waits for count, as on a clock; where no kernel tells of these it is one. ``thread`` is its
    native number, or that of this one. Only differences mean something.

    >>> begun = unhindered_s()
    >>> time.sleep(0.04)
    >>> 0.03 <= unhindered_s() - begun
    True
    """
    now, hindered = time.monotonic(), 0.0
    with suppress(OSError, ValueError, IndexError):  # Linux has it, and not each kernel
        text = Path(f"/proc/self/task/{thread or threading.get_native_id()}/schedstat").read_text("ascii")
        hindered = int(text.split()[1]) / 1e9
    return now - hindered
