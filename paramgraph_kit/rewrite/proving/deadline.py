"""An end for steps that go on and on, as a loop does which waits for what other inputs never bring."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from paramgraph_kit.doctor.observe.limit import TimeUp
from paramgraph_kit.driver.work import worked_s

T = TypeVar("T")
STEP_S = 60.0
FEWEST_S = 5.0  # of a step that is known to be quick, on a machine that has other things to do
TIMES = 30  # as long as the longest so far
RAISES = (Exception, SystemExit)  # by which a step ends by itself: `sys.exit(1)` where its loss is not finite


def unless_raises(run: Callable[[], T]) -> T | None:
    """What some steps show; None where one of them ends by itself."""
    try:
        return run()
    except RAISES:
        return None


@contextmanager
def outlived() -> Iterator[None]:
    """While this lasts ``os._exit`` and ``os.abort`` raise as ``sys.exit`` does: no trial ends the user's process."""
    process, own = os.getpid(), (os._exit, os.abort)

    def ends(code: int = 1) -> NoReturn:
        if os.getpid() != process:  # but one that was forked
            own[0](code)
        raise SystemExit(code)

    os._exit = os.abort = ends  # type: ignore[assignment]  # its argument has another name
    try:
        yield
    finally:
        os._exit, os.abort = own


class TooLongError(RuntimeError):
    """A step took too long, and was ended."""


class Deadline:
    """Ends a step at the operation that begins too late; what computes nothing on the device is not ended.

    Args:
        seconds: how long one step may take; where others have ended, it may be much longer than they were, and no more.
    """

    def __init__(self, seconds: float = STEP_S) -> None:
        self.seconds = seconds
        self._longest: float | None = None
        self._until = self._asks_at = math.inf

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, which raises TooLongError outside: no ``except Exception`` of the user's hears what ends it."""
        known, begun = self._longest, worked_s()
        limit = self.seconds if known is None else min(self.seconds, max(FEWEST_S, TIMES * known))
        self._until, self._asks_at = begun + limit, time.monotonic() + limit
        try:
            yield
            self._longest = max(known or 0.0, worked_s() - begun)
        except TimeUp:
            raise TooLongError(
                f"a step was ended after {limit:.0f} s, as others are done in {known or 0.0:.2g}"
            ) from None
        finally:
            self._until = self._asks_at = math.inf

    def check(self) -> None:
        """Called as each operation begins.

        Raises:
            TimeUp: the step has taken too long.
        """
        if (now := time.monotonic()) < self._asks_at:  # nothing has worked for longer than has passed
            return
        if (left := self._until - worked_s()) < 0:
            raise TimeUp
        self._asks_at = now + left
