"""Long captures tell the logger what they do; short ones, and those that nobody listens to, say nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver import progress


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is logged, where every capture is a long one."""
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    logger, listener = logging.getLogger("paramgraph_kit"), _Listener()
    before = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    yield listener.texts
    logger.setLevel(before)
    logger.removeHandler(listener)


def test_a_long_capture_tells_what_it_does_and_when_it_is_done(heard: list[str]) -> None:
    # GIVEN a capture that takes its time WHEN it goes on to something else
    with progress.telling("step"):
        progress.now("plans")
        time.sleep(0.05)

    # THEN that is told with its name, and how long all took
    assert "step: plans, 0 s by now" in heard
    assert heard[-1].startswith("step: done after 0.")


def test_steps_and_functions_tell_of_their_captures(heard: list[str]) -> None:
    # GIVEN a function and a step WHEN they are captured
    model = torch.nn.Linear(8, 8).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    x = torch.randn(4, 8, device=pgk.device())
    step, call = pgk.parameterize(train_step, state=(model, optimizer)), pgk.parameterize(model)
    for _ in range(3):
        step(x)
        call(x)

    # THEN each is named, and nothing goes on afterwards
    assert {text.partition(":")[0] for text in heard if "done after" in text} >= {"train_step"}
    assert any("partition 0: done after" in text for text in heard)
    assert not progress._current


def test_where_nobody_listens_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a logger that tells nothing of that kind WHEN something is captured THEN nobody is made to tell of it
    assert not logging.getLogger("paramgraph_kit").isEnabledFor(logging.INFO)
    monkeypatch.setattr(progress, "_Telling", None)
    with progress.telling("step"):
        progress.now("plans")
