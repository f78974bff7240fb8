"""Processes that warm up at the same time and are then timed in turns; both sides of what they say to one another."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

READY = "ready to be timed"
LATE = "not done in time"


class Child:
    """A process that says when it is warm, then waits for each of its turns to be timed, and hands in a row."""

    def __init__(
        self, command: Sequence[str], row: dict[str, Any], limit: float, env: Mapping[str, str] | None = None
    ) -> None:
        self.row = row  # what its row holds in any case
        self.said = ""  # on stderr, once it has ended
        self._last = ""  # line that it printed
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the child
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=env
        )
        self._limit: threading.Timer | None = None
        self._late = False
        self.live(limit)

    def live(self, seconds: float) -> None:
        """End it in so many seconds from now, and not before."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = threading.Timer(seconds, self._end)
        self._limit.daemon = True
        self._limit.start()

    def _end(self) -> None:
        self._late = True
        self._process.kill()

    def wait_until_ready(self) -> None:
        """Until it is warm or done with its turn, or has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return
            self._last = line

    def take_a_turn(self, steps: int, cores: str = "") -> None:
        """Time so many steps, on these cores if any are given, if it still runs; 0 ends it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed: its result will say so
            print(steps, cores, file=self._process.stdin, flush=True)
            self.wait_until_ready()

    def result(self) -> dict[str, Any]:
        """No more turns: what it measured, or its error."""
        self.take_a_turn(0)
        status = self._process.wait()
        if self._limit is not None:
            self._limit.cancel()
        self._errors.seek(0)
        self.said = self._errors.read().strip()
        for stream in (self._errors, self._process.stdout, self._process.stdin):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]
        try:
            return dict(json.loads(self._last))
        except (json.JSONDecodeError, TypeError, ValueError):
            last = self.said.splitlines()[-1:] or [f"exit status {status} and no output"]
            return self.row | {"error": LATE if self._late else last[0]}


def all_ready(children: Sequence[Child], deadline: float) -> None:
    """Wait for all at once, and let each that is warm live until then: one that is late keeps no other waiting."""

    def one(child: Child) -> None:
        child.wait_until_ready()
        child.live(max(1.0, deadline - time.monotonic()))

    with ThreadPoolExecutor(max(1, len(children))) as pool:
        list(pool.map(one, children))


def turns(cores: set[int]) -> Iterator[int]:
    """In the child: how many steps to time, each time that it is its turn; ``cores`` is told which to keep to."""
    print(READY, flush=True)
    while (turn := sys.stdin.readline().split()) and turn[0] != "0":
        cores.update(int(core) for core in "".join(turn[1:]).split(",") if core)
        yield int(turn[0])
        print(READY, flush=True)
