"""The time limit of a call in a thread: it ends what runs too long, and leaves the interpreter as it was."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from paramgraph_kit.doctor.observe.limit import TimeUp, at_most


def in_a_thread(run: Callable[[], Any], limit_s: float = 10.0) -> Any:
    """What ``run`` returns in a thread of its own; the thread is given up after ``limit_s``."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(run()), daemon=True)
    thread.start()
    thread.join(limit_s)
    assert got, "the thread never came to an end"
    return got[0]


def limited(seconds: float, body: Callable[[], Any]) -> str:
    try:
        with at_most(seconds, lambda frame: True):
            body()
    except TimeUp:
        return "interrupted"
    return "ended"


def forever() -> None:
    while True:
        pass


def under_a_profiler() -> int:
    """Calls that a profile function sees: where something is left to interrupt, Python 3.11 never enters one."""
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        for _ in range(3):
            len(seen), limited.__name__.upper()
            (lambda: None)()
    finally:
        sys.setprofile(None)
    return seen.count("call")


def rung_while_it_ends() -> None:
    # The interruption is asked for when the body is done: nothing is left to interrupt but what comes after it.
    time.sleep(0.05)


@pytest.mark.parametrize(
    ("seconds", "body", "expected"),
    [
        (5.0, lambda: None, {"ended"}),
        (0.05, forever, {"interrupted"}),
        (0.05, rung_while_it_ends, {"ended", "interrupted"}),
    ],
    ids=["in time", "too long", "at the end"],
)
def test_a_profiler_works_after_a_limit_in_a_thread(
    seconds: float, body: Callable[[], Any], expected: set[str]
) -> None:
    # GIVEN a call with a limit, in a thread that is not the main one
    for _ in range(20 if len(expected) > 1 else 1):
        assert in_a_thread(lambda: limited(seconds, body)) in expected
        # WHEN code runs under a profile function, in that thread or another THEN each call is entered, once
        assert in_a_thread(under_a_profiler) == 3


def test_nothing_is_interrupted_after_a_limit_in_a_thread() -> None:
    # GIVEN a call that ends when its time does WHEN its thread goes on THEN no interruption is left for it
    def run() -> str:
        limited(0.05, rung_while_it_ends)
        until = time.monotonic() + 0.6  # longer than it takes to ring again
        while time.monotonic() < until:
            pass
        return "went on"

    assert in_a_thread(run) == "went on"
