"""An end for steps that go on and on, as a loop does which waits for what other inputs never bring."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from paramgraph_kit.doctor.observe.limit import TimeUp

STEP_S = 60.0


class TooLongError(RuntimeError):
    """A step took too long, and was ended."""


class Deadline:
    """Ends a step at the operation that begins too late; what computes nothing on the device is not ended.

    Args:
        seconds: how long one step may take.
    """

    def __init__(self, seconds: float = STEP_S) -> None:
        self.seconds = seconds
        self._until = math.inf

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, which raises TooLongError outside: no ``except Exception`` of the user's hears what ends it."""
        self._until = time.monotonic() + self.seconds
        try:
            yield
        except TimeUp:
            raise TooLongError(f"a step was ended after {self.seconds:g} s") from None
        finally:
            self._until = math.inf

    def check(self) -> None:
        """Called as each operation begins.

        Raises:
            TimeUp: the step has taken too long.
        """
        if time.monotonic() > self._until:
            raise TimeUp
