"""A step without an end is ended, and one that is only slow is not."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from paramgraph_kit.rewrite.proving import deadline
from paramgraph_kit.rewrite.proving.deadline import Deadline, TooLongError


def goes_on(end: Deadline) -> None:
    """A step that asks for an operation again and again, whatever is raised."""
    with end.step():
        while True:
            with suppress(Exception):
                end.check()


def test_a_step_without_an_end_is_ended_though_it_hears_every_exception() -> None:
    # GIVEN a loop that goes on whatever is raised WHEN it runs THEN it is ended, and the error says after how long
    end = Deadline(0.05)
    with pytest.raises(TooLongError, match="a step was ended after 0 s"):
        goes_on(end)
    end.check()  # and between steps nothing is


def test_a_step_may_be_so_much_longer_than_others_were(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN steps that were done at once
    monkeypatch.setattr(deadline, "FEWEST_S", 0.1)
    end = Deadline()
    with end.step():
        end.check()
    # WHEN another one goes on and on THEN it is ended long before the limit of the first
    begun = time.monotonic()
    with pytest.raises(TooLongError):
        goes_on(end)
    assert time.monotonic() - begun < 10
