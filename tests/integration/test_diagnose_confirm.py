"""Confirmation by a real capture in a child process, and what cannot be confirmed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.doctor.child.carry import pack, unpack
from paramgraph_kit.doctor.child.confirm import confirm
from paramgraph_kit.verbs import _diagnose
from tests.doctor_programs import SEVEN, program

DEVICE = pgk.device()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process imports torch, beside whatever else this machine does."""
    monkeypatch.setattr(_diagnose, "CHILD_S", 600.0)


def test_a_problem_is_confirmed_and_the_rest_stays(tmp_path: Path) -> None:
    # GIVEN a function with seven problems, from a file that no module is
    names = program(SEVEN, tmp_path / "seven.py")
    # WHEN diagnosed with confirmation
    found = pgk.diagnose(names["f"], *names["inputs"], confirm=True)
    # THEN the one at which a capture stops is marked, and there are still seven
    assert len(found) == 7
    assert [f.code for f in found if f.message.endswith("; confirmed by a capture")] == ["sync-item"]
    assert found.notes[0].startswith("a capture in a child process fails at the first of them only (")


class Net(nn.Module):
    """A class of the user's: it travels as code, with ``super()`` and a recursive helper."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return times(self.inner(x), 3)


def times(x: torch.Tensor, n: int) -> torch.Tensor:
    return x if n == 0 else times(x * 2, n - 1)


def test_what_is_sound_is_captured_and_replayed() -> None:
    model, scale = Net().to(DEVICE), torch.ones(4, device=DEVICE)
    side = pgk.cuda.Stream()

    def f(x: torch.Tensor) -> torch.Tensor:
        side.wait_stream(pgk.cuda.current_stream())
        y: torch.Tensor = model(x) * scale
        pgk.cuda.current_stream().wait_stream(side)
        return y

    found = pgk.diagnose(f, torch.ones(2, 4, device=DEVICE), confirm=True)
    assert not found, str(found)
    assert found.notes[0].startswith("a child process captured and replayed it (")


def test_functions_and_classes_travel_as_code() -> None:
    # GIVEN a module of a class of the user's, with a gradient WHEN packed and made again
    model = Net().to(DEVICE)
    x = torch.ones(2, 4, device=DEVICE)
    model(x).sum().backward()
    calls = [0]

    def f(x: torch.Tensor, *, plus: float = 1.0) -> torch.Tensor:
        calls[0] += 1
        y: torch.Tensor = model(x) + plus
        return y

    g, args, kwargs = unpack(pack(f, (x,), {"plus": 2.0}))
    # THEN it computes the same and is another one
    assert torch.equal(g(*args, **kwargs), f(x, plus=2.0))
    assert torch.equal(g(*args), f(x))
    assert g is not f
    assert calls == [2]
    other = g.__closure__[g.__code__.co_freevars.index("model")].cell_contents
    assert type(other) is not Net
    assert type(other).__name__ == "Net"
    gradient = model.inner.weight.grad
    assert gradient is not None
    assert torch.equal(other.inner.weight.grad, gradient)


def never(x: torch.Tensor) -> torch.Tensor:
    time.sleep(60)
    return x


def dies(x: torch.Tensor) -> torch.Tensor:
    os.abort()


def test_what_cannot_be_confirmed_is_said_with_the_reason() -> None:
    x = torch.ones(2, device=DEVICE)
    lock: Any = threading.Lock()
    # GIVEN something that no other process can have THEN that is the reason
    problems, note = confirm(lambda x: (x, lock), (x,), {}, [], limit_s=600)
    assert problems == []
    assert note == (
        "not confirmed by a capture: it cannot travel to a child process, "
        "TypeError: cannot pickle '_thread.lock' object"
    )
    # GIVEN a function that never ends, or ends its process THEN the session goes on
    note = "not confirmed by a capture: the child process took more than 1 s"
    assert confirm(never, (x,), {}, [], limit_s=1) == ([], note)
    note = confirm(dies, (x,), {}, [], limit_s=600)[1]
    assert note.startswith("not confirmed by a capture: the child process ended with SIGABRT")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what fails only under capture is another thing there")
def test_what_only_a_capture_shows_is_added() -> None:
    # GIVEN a function that waits only where it is captured WHEN confirmed THEN that is one more problem
    def f(x: torch.Tensor) -> torch.Tensor:
        if pgk.cuda.is_current_stream_capturing():
            x.sum().item()
        return x * 2

    found = pgk.diagnose(f, torch.ones(2, device=DEVICE), confirm=True)
    assert found.codes == ("capture-aware-code", "sync-item")
    assert found.failures[1].message.endswith("; seen only in a capture")
