"""Results that what a loop hands them to keeps as they are: each replay writes over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import torch, paramgraph_kit as pgk
from collections import deque
device = pgk.device()
class Log:
    def __init__(self): self.rows, self.mean = [], 0.0
    def add(self, name, value):
        HELD
class Meter:
    def __init__(self):
        self.total, self.window, self.log = torch.zeros((), device=device), deque(maxlen=3), Log()
    def step(self, x):
        loss = (x * 2).sum()
        self.total += loss
        return 3, loss
    def after_step(self, n, loss):
        KEPT
        return torch.stack(list(self.window) or [self.total]).mean()
m = Meter()
f, inputs = m.step, (torch.ones(4, device=device),)
def main(xs, best, counts):
    for i, x in enumerate(xs):
        LOOP
"""
PAIR = "n, loss = m.step(x)\n        "
SPLIT = PAIR + "m.after_step(n, loss)"


def program(held: str = "pass", kept: str = "pass", loop: str = "m.after_step(*m.step(x))") -> str:
    """A meter, and a loop around its step."""
    return HEAD.replace("HELD", held).replace("KEPT", kept).replace("LOOP", loop)


WRONG = {
    "handed on at once": (program(kept="self.window.append(loss)"), "self.window.append(loss)"),
    "handed on by name": (program(kept="self.window.append(loss)", loop=SPLIT), "self.window.append(loss)"),
    "handed on again": (
        program("self.rows.append((name, value))", 'self.log.add("loss", value=loss)'),
        "self.rows.append((name, value))",
    ),
    "kept by the loop, of a pair": (
        program(loop=PAIR + "best.append(loss)"),
        "best.append(loss)",
    ),
    "kept at another key": (program(loop=PAIR + "best[i] = loss"), "best[i] = loss"),
}
RIGHT = {
    "a clone": program(kept="self.window.append(loss.clone())"),
    "a number of it": program(kept="loss = loss.item()\n        self.window.append(loss)"),
    "a number beside it": program(kept="self.log.rows.append(n)", loop=PAIR + "counts.append(n)"),
    "what ends with the call": program(kept="rows = []\n        rows.append(loss)"),
    "the last alone": program(kept="self.last = loss", loop=SPLIT + "\n        best['now'] = loss"),
    "read before it is kept": program(loop=PAIR + "loss = loss.item()\n        best.append(loss)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_is_kept_beside_the_loop_is_noted(name: str, tmp_path: Path) -> None:
    # GIVEN a step, and a loop around it that keeps what it returns, itself or by a method that it calls
    text, line = WRONG[name]
    names = load(text, tmp_path / "program.py")
    # WHEN the step is diagnosed THEN a note says that it needs a clone, with the line
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)
    assert any("keep a clone() at" in note and note.endswith(line) for note in diagnosis.notes), str(diagnosis)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_copied_or_ends_with_the_round_is_not_noted(name: str, tmp_path: Path) -> None:
    # GIVEN the same with a copy, a number, or a list of one round WHEN it is diagnosed THEN nothing is said of it
    names = load(RIGHT[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not any("clone()" in note for note in diagnosis.notes), str(diagnosis)
