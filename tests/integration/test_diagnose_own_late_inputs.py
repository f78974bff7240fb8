"""Replays ahead of the line that writes their input, whose results are each those of the input before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
ENGINE = """
class Engine:
    def __init__(self):
        self.w, self.x = torch.randn(8, device=device), torch.zeros(4, 8, device=device)
        self.g = cuda.CUDAGraph()
        with cuda.graph(self.g):
            self.y = self.x * self.w
    def __call__(self, x):
        FIRST
        SECOND
        return self.y.clone()
def main():
    engine = Engine()
    PRIMED
    return [engine(torch.randn(4, 8, device=device)).argmax(-1).tolist() for _ in range(3)]
"""
LOOP = """
def main():
    w, x = torch.randn(8, device=device), MADE
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = x * w
    out = []
    for batch in torch.randn(4, 4, 8, device=device):
        g.replay()
        x.copy_(batch)
        out.append(y.argmax(-1).tolist())
    return out
"""


def diagnosed(text: str, tmp_path: Path) -> pgk.Diagnosis:
    """What is found in a program's ``main``."""
    return pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"])


@pytest.mark.parametrize("write", ["self.x.copy_(x)", "self.x[:] = x", "self.x.copy_(x.float(), non_blocking=True)"])
def test_a_replay_ahead_of_the_line_that_writes_what_its_call_is_given_is_told(write: str, tmp_path: Path) -> None:
    # GIVEN a call that replays, and writes its argument to the static input behind that
    program = ENGINE.replace("FIRST", "self.g.replay()").replace("SECOND", write).replace("PRIMED", "")
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN it is told at the replay, in its own words, with where it belongs
    assert [(f.code, f.title) for f in found] == [("stale-input", "A replay comes ahead of its input")]
    line = (PRELUDE + program).splitlines().index(f"        {write}") + 1
    assert found[0].fix == f"before  self.g.replay()\nafter   this line behind line {line}, and not here"


@pytest.mark.parametrize(
    ("first", "second", "primed"),
    [
        ("self.x.copy_(x)", "self.g.replay()", ""),
        ("self.g.replay()", "self.x.copy_(x)", "engine.x.copy_(torch.randn(4, 8, device=device))"),
        ("self.g.replay()", "self.x.copy_(self.x + self.y.sum())", ""),
        ("self.g.replay(); now = self.y.clone()", "self.x.copy_(x)", ""),
    ],
    ids=["ahead", "the first is given before", "a state that goes on", "read before it is written"],
)
def test_an_input_that_is_the_next_ones_is_none(first: str, second: str, primed: str, tmp_path: Path) -> None:
    # GIVEN an input that is written ahead of the replay, or for the next one on purpose
    program = ENGINE.replace("FIRST", first).replace("SECOND", second).replace("PRIMED", primed)
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN
    assert not found


@pytest.mark.parametrize(
    ("made", "told"), [("torch.zeros(4, 8, device=device)", 1), ("torch.randn(4, 8, device=device)", 0)]
)
def test_in_a_loop_it_is_told_where_nothing_was_in_the_input_at_first(made: str, told: int, tmp_path: Path) -> None:
    # GIVEN a loop that replays ahead of its batch, with an input of zeros, or of numbers that may be the first batch
    program = LOOP.replace("MADE", made)
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN
    assert [f.code for f in found] == ["stale-input"] * told


def test_words_name_the_users_own_replay_once(tmp_path: Path) -> None:
    # GIVEN a copy on a stream of its own that the replay, told with its own line, does not wait for
    write = "with cuda.stream(self.s):\n            self.x.copy_(x)"
    program = ENGINE.replace("FIRST", write).replace("SECOND", "self.g.replay()").replace("PRIMED", "")
    program = program.replace("        self.g = ", "        self.s = cuda.Stream()\n        self.g = ")
    # WHEN
    found = [f for f in diagnosed(program, tmp_path).failures if f.code == "work-elsewhere"]
    # THEN
    assert any(f.fix.startswith("before  self.g.replay()\n") for f in found)
    assert not any("self.self." in f.fix for f in found)
