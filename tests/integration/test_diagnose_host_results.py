"""Numbers and words of the host's among results: another call returns others, and a replay those of the capture."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import itertools, time
import torch, paramgraph_kit as pgk
device = pgk.device()
x = torch.ones(3, 4, device=device)
"""
TAG = """class Tag:
    def __init__(self): self.ids = itertools.count(1)
    def step(self, x):
        name = f"step-{next(self.ids)}"
        y = x * 2
        return {"y": y, "name": name}
f = Tag().step
"""
WRONG = {
    "a counter": ("ids = itertools.count()\ndef f(x):\n    return x * 2, next(ids)\n", "return x * 2, next(ids)"),
    "a name": (TAG, 'return {"y": y, "name": name}'),
    "a time": (
        "def f(x):\n    t = time.perf_counter()\n    y = x * 2\n    return y, time.perf_counter() - t\n",
        "return y, time.perf_counter() - t",
    ),
}
RIGHT = {
    "what a shape decides": 'def f(x):\n    return x * 2, f"{x.shape[0]} rows", x.numel()\n',
    "what never moves": 'NAME = "net"\ndef f(x):\n    return {"y": x * 2, "name": NAME, "none": float("nan")}\n',
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_host_returns_anew_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a step that returns what Python counts, names or times
    text, line = WRONG[name]
    names = load(HEAD + text, tmp_path / "program.py")
    # WHEN it is diagnosed THEN that is told where it is returned
    diagnosis = pgk.diagnose(names["f"], names["x"])
    assert [(f.code, f.frame.text) for f in diagnosis if f.frame] == [("host-counter", line)], str(diagnosis)
    assert "a replay returns no other" in diagnosis.failure.message


def test_the_words_for_a_name_send_it_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN the same WHEN a fix is asked for THEN its words do not make an argument of it
    names = load(HEAD + TAG, tmp_path / "program.py")
    fix = pgk.diagnose(names["f"], names["x"], fix=True).fix
    assert "the same behind each launch, where Python runs" in str(fix), str(fix)


@pytest.mark.parametrize("name", RIGHT)
def test_what_stays_is_no_problem(name: str, tmp_path: Path) -> None:
    # GIVEN results of the host's that are the same in each call WHEN diagnosed THEN nothing is told
    names = load(HEAD + RIGHT[name], tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], names["x"])
    assert not diagnosis, str(diagnosis)
