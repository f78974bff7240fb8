"""Whether a capture would have all streams of a call: what runs on others would run at captures, and at no launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from paramgraph_kit.doctor.observe.forks import Forks
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.select import twin


class Streams:
    """Follows the current stream of one call, and who waits for whom."""

    def __init__(self, driver: Driver) -> None:
        self._current, self._is_capturing = driver.current_stream, driver.is_capturing
        self._now = self._current()
        self._forks = Forks(self._now)
        self._captured: set[int] = set()  # in captures of the call's own, which are refused where they are made
        self.aside = False  # whether a stream was entered and left that had not waited for the call's own

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what is recorded and who waits."""
        cuda, forks = twin(), self._forks
        record, wait, wait_event = cuda.Event.record, cuda.Event.wait, cuda.Stream.wait_event

        def recording(event: Any, stream: Any = None) -> None:
            forks.record(event, self._number(stream))
            record(event, stream)

        def waiting(event: Any, stream: Any = None) -> None:
            forks.wait(event, self._number(stream))
            wait(event, stream)

        def following(stream: Any, event: Any) -> None:
            forks.wait(event, self._number(stream))
            wait_event(stream, event)

        with (
            mock.patch.multiple(cuda.Event, record=recording, wait=waiting),
            mock.patch.object(cuda.Stream, "wait_event", following),
        ):
            yield
            self._leave()

    def look(self, event: str, argument: object) -> None:
        """What a profile hook hears: the call of a function, or of a built-in one."""
        if (now := self._current()) != self._now:
            self._leave()
            self._now = now
        if not self._forks.reached(now) and self._is_capturing():
            self._captured.add(now)
        if event == "c_call" and isinstance(getattr(argument, "__self__", None), torch.Tensor):
            self._leave()  # something runs there already

    def _leave(self) -> None:
        self.aside = self.aside or not (self._forks.reached(self._now) or self._now in self._captured)

    def _number(self, stream: Any) -> int:
        return self._current() if stream is None else int(getattr(stream, "cuda_stream", stream.stream_id))
