"""The streams that there are, and which one each thread has chosen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import autograd

if TYPE_CHECKING:
    from .stream import Before, Stream

POOL = 32  # streams that torch has of a priority: who asks for more gets the first ones again


@dataclass
class Pass:
    """A backward pass: its thread's log, what it goes to where not to every leaf, and hooks that it takes away."""

    roots: list[Any]
    log: autograd.Log[Stream]
    inputs: tuple[Any, ...]
    accumulates: bool
    hooks: list[Any] = field(default_factory=list)


class Streams:
    """Every stream, and which one is current on each thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.streams: dict[int, Stream] = {}
        self._turns: dict[int, int] = {}  # by priority: how often a stream was given again
        self._pools: dict[int, list[Stream]] = {}
        self.engine_log: autograd.Log[Stream] = []  # of the thread that chose a stream last
        self.begun: dict[object, Pass] = {}  # threads write it without a lock, each a key of its own
        self.passes: dict[int, autograd.Log[Stream]] = {}  # the logs by task, once one of its nodes runs
        self.behind: list[tuple[Stream, Stream]] = []  # streams that run what others run for them here

    def next_number(self) -> int:
        """The raw number of the next one."""
        return 0 if not self.streams else 16 * (len(self.streams) + 1)

    def register(self, stream: Stream) -> int:
        """Take a new one in; its raw number."""
        number = self.next_number()
        self.streams[number] = stream
        if number:
            self._pools.setdefault(stream.priority, []).append(stream)
        return number

    def in_turn(self, priority: int) -> Stream | None:
        """One of the pool's again, once that has all its streams."""
        pool = self._pools.get(priority, [])
        if len(pool) < POOL:
            return None
        turn = self._turns.get(priority, 0)
        self._turns[priority] = turn + 1
        found: Stream | None = pool[turn % POOL]
        instead = found is not None and found.captures
        if instead:
            found = self.in_turn(priority)
        if found is not None:
            found.again, found.instead = True, instead
        return found

    def stack(self) -> list[Before]:
        """What ``with stream`` has to put back, innermost last."""
        found: list[Before] | None = getattr(self._local, "stack", None)
        if found is None:
            found = self._local.stack = []
        return found

    def log(self) -> autograd.Log[Stream]:
        """Which streams this thread has chosen, and when."""
        found: autograd.Log[Stream] | None = getattr(self._local, "log", None)
        if found is None:
            found = self._local.log = []
        return found

    def current(self) -> Stream | None:
        """That of this thread, None for one that has chosen none."""
        return getattr(self._local, "stream", None)

    def set(self, stream: Stream) -> None:
        """Make it this thread's."""
        self._local.stream = stream

    def forget(self) -> None:
        """Let this thread have chosen none."""
        del self._local.stream
