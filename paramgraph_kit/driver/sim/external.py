"""Streams that are known by their raw numbers, and others that work on them."""

from __future__ import annotations

from typing import Any

from .stream import Stream, current_stream, default_stream, stream_of
from .under_way import Capture


class ExternalStream(Stream):
    """The twin of ``torch.cuda.ExternalStream``: the stream with a raw number, which equals none of torch's own."""

    external = True

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Stream:  # type: ignore[misc]
        """Torch takes 0, the default stream's number, for none given, and gives one of its own [H200]."""
        return super().__new__(cls, stream_id=stream_ptr) if stream_ptr else Stream()

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        self._same = stream_of(stream_ptr)
        self.cuda_stream, self.priority = stream_ptr, self._same.priority

    @property
    def capture(self) -> Capture | None:
        """That of the stream with its number."""
        return self._same.capture

    @capture.setter
    def capture(self, capture: Capture | None) -> None:
        self._same.capture = capture

    @property
    def tail(self) -> tuple[int, ...]:
        """That of the stream with its number."""
        return self._same.tail

    @tail.setter
    def tail(self, tail: tuple[int, ...]) -> None:
        self._same.tail = tail


def order_for_others(number: int | None) -> None:
    """Who is given memory of the device works on the stream with this raw number: -1 orders nothing, None is default's.

    Raises:
        torch.AcceleratorError: code 906, the default stream would wait for one that captures.
    """
    if number == -1:
        return
    stream = default_stream() if number in (None, 1) else stream_of(number or 0)
    if stream != current_stream():
        stream.wait_stream(current_stream())
