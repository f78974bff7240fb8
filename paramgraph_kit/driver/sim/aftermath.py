"""What a failed capture has left wrong on the simulated device, in the words of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .capture import recover
from .machine import machine
from .stream import current_stream
from .under_way import open_captures


def left_behind(suspects: Sequence[Any]) -> tuple[str, ...]:
    """What is wrong now, in words; ``suspects`` are streams that have captured and should not be current any more."""
    if any(not capture.invalid for capture in open_captures()):
        return ("a capture is still under way",)
    found = ["a spoiled capture was never ended"] if open_captures() else []
    stream = current_stream()
    if stream.cuda_stream != 0 and (stream.captures or any(stream == one for one in suspects)):
        found.append("the current stream is still the one that captured")
    if machine().generator.left_in_capture:
        found.append("the random generator still believes in the capture")
    if machine().allocator.captures_underway > len(open_captures()):
        found.append("the allocator still waits for the end of the capture")
    return tuple(found)


def repair(suspects: Sequence[Any]) -> None:
    """Put right what ``left_behind`` tells."""
    if left_behind(suspects):
        recover()
