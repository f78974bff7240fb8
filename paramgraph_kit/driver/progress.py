"""What a long capture is doing: told to the logger ``paramgraph_kit`` every two seconds, if anybody listens.

logging.basicConfig()
logging.getLogger("paramgraph_kit").setLevel(logging.INFO)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 2.0  # what is done sooner is not told of
_log = logging.getLogger("paramgraph_kit")
_current: list[_Telling] = []  # captures wait for one another, but a step's may have others in it


class _Telling:
    """Tells of one capture from a thread of its own: whoever captures has no moment for it."""

    def __init__(self, name: str) -> None:
        self.doing = "looks at what it captures"
        self._name, self._started = name, time.perf_counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="paramgraph_kit tells of a capture", daemon=True)
        self._thread.start()

    def _tell(self) -> None:
        while not self._done.wait(EVERY_S):
            _log.info("%s: %s, %.0f s by now", self._name, self.doing, time.perf_counter() - self._started)

    def end(self) -> None:
        """Say how long it took, where anything was told."""
        self._done.set()
        self._thread.join()
        if (took := time.perf_counter() - self._started) >= EVERY_S:
            _log.info("%s: done after %.1f s", self._name, took)


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Tell of the capture in the block."""
    if not _log.isEnabledFor(logging.INFO):
        yield
        return
    one = _Telling(name)
    _current.append(one)
    try:
        yield
    finally:
        _current.remove(one)
        one.end()


def now(doing: str) -> None:
    """What the capture that is under way does from here on."""
    if _current:
        _current[-1].doing = doing
