"""A failure of which there is only the exception, told with the user's own line where its text tells what to write."""

from __future__ import annotations

import traceback
from contextlib import suppress
from types import CellType, FrameType, FunctionType

from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.errors import cause_chain
from paramgraph_kit.trace.model import Failure, Frame

LATER = ("unjoined-work", "invalidated")  # CUDA tells of these behind the line that is the cause


def explained(error: BaseException) -> Failure:
    """What an exception means; nothing is run for it, or tried."""
    from paramgraph_kit.doctor import explain
    from paramgraph_kit.rewrite.own_lines import in_own_lines
    from paramgraph_kit.verbs._led_there import led_there

    failure = explain(error)
    frame = _running(error, failure.frame) if failure.frame is not None else None
    if frame is None:
        return failure
    if failure.code in LATER:
        with suppress(Exception):  # names may mean anything there, and answer as they like
            if (led := led_there(failure, frame)) is not failure:
                return led
    (own,) = in_own_lines(_function_of(frame), (), {}, [failure])
    return own


def _running(error: BaseException, at: Frame) -> FrameType | None:
    """What ran the line that a failure is at."""
    for one in cause_chain(error):
        for frame, line in traceback.walk_tb(one.__traceback__):
            if line == at.line and display_name(frame.f_code.co_filename) == at.file:
                return frame
    return None


def _function_of(frame: FrameType) -> FunctionType:
    """The function that runs in a frame, with what its names were: only its text is read, and where they lead."""
    cells = tuple(CellType(frame.f_locals.get(name)) for name in frame.f_code.co_freevars)
    return FunctionType(frame.f_code, frame.f_globals, frame.f_code.co_name, None, cells)
