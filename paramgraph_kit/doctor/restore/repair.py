"""After a failed capture: what state the process is in, and capturing so that a failure leaves none behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from paramgraph_kit.doctor.explain.exception import explain
from paramgraph_kit.doctor.known.evidence import first_line
from paramgraph_kit.doctor.observe.line_marks import Lines
from paramgraph_kit.driver.collection import no_collection
from paramgraph_kit.driver.lines import remember
from paramgraph_kit.driver.select import driver, driver_in_use, twin
from paramgraph_kit.trace.errors import CaptureError, UnsupportedError, cause_chain


def process_state(error: BaseException) -> str:
    """What the failed capture behind ``error`` has left, and what to do; "" where this process has used no device."""
    target = driver_in_use()
    if target is None:
        return ""
    try:
        left = target.left_behind(_captured_on(error))
    except RuntimeError as answer:
        return f"the device answers only '{first_line(str(answer))}': restart the kernel"
    if not left:
        return "this process is in order: change the line and capture again"
    if "restart" in left[0]:
        return left[0]
    if left == ("a capture is still under way",):
        return "a capture is still under way: end it, or put the process right with diagnose.repair()"
    return f"{'; '.join(left)}: diagnose.repair() puts that right"


def repair(error: BaseException | None = None) -> tuple[str, ...]:
    """Put the process right after failed captures; returns what was wrong.

    Args:
        error: what the failed capture raised, the last exception that was shown if None. It tells on which stream
            the capture ran, where that was one of yours.

    Raises:
        UnsupportedError: only a new process helps, or another capture is under way.
    """
    known = error if error is not None else getattr(sys, "last_value", None)
    suspects = _captured_on(known) if isinstance(known, BaseException) else []
    target = driver()
    try:
        left = target.left_behind(suspects)
        target.repair(suspects, known if isinstance(known, BaseException) else None)
    except RuntimeError as answer:
        said = first_line(str(answer))
        raise UnsupportedError(f"the device answers only '{said}': restart the kernel, nothing else helps") from answer
    return left


@contextmanager
def capture(graph: Any, *, lines: bool = False, **options: Any) -> Iterator[Any]:
    """Capture like ``torch.cuda.graph``; where it fails, the process stays usable and the error says why.

    Current stream, random generator and allocator are put right, so the next capture can be tried in the same notebook.

    Args:
        graph: a ``CUDAGraph``, which the body of ``with`` gets.
        lines: note which line records which node, for ``explore(graph)``; every operation takes longer.
        options: those of ``torch.cuda.graph``: ``pool``, ``stream``, ``capture_error_mode``.

    Raises:
        CaptureError: the capture failed; its text is one line with your line and the fix.
    """
    cuda, target = twin(), driver()
    before = cuda.current_stream()
    target.left_behind()  # what is in order now can be told from what is not afterwards
    manager = cuda.graph(graph, **options)
    try:
        with no_collection(), manager, Lines(target) if lines else nullcontext() as noted:
            yield graph
        if noted is not None:
            remember(graph, noted.marks())
    except BaseException as error:
        failure = explain(error)
        state = _repaired(target, manager.capture_stream, before, cuda, error)
        if failure.code == "unknown" or not isinstance(error, Exception):
            graph.reset()  # what was recorded until then is a graph, but not the one that was meant
            raise
        raise CaptureError(failure, state) from error


def _repaired(target: Any, stream: Any, before: Any, cuda: Any, error: BaseException) -> str:
    try:
        target.repair([stream], error)
        cuda.set_stream(before)
    except (UnsupportedError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return "the process is in order"


def _captured_on(error: BaseException) -> list[Any]:
    """Streams of the captures that an exception went through, innermost last."""
    found: list[Any] = []
    for one in cause_chain(error):
        traceback = one.__traceback__
        while traceback is not None:
            manager = traceback.tb_frame.f_locals.get("self")
            stream = getattr(manager, "capture_stream", None) if manager is not None else None
            if hasattr(stream, "cuda_stream") and all(stream is not known for known in found):
                found.append(stream)
            traceback = traceback.tb_next
    return found
