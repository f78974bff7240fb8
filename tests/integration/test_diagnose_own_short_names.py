"""What captured methods read and exchange through a variable that stands for a path: ``s = self.state``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Carried:
    def __init__(self):
        self.mean, self.gain, self.rows = torch.zeros(3, device=device), 0.5, {"n": torch.zeros((), device=device)}
class Filter:
    def __init__(self):
        self.state = Carried()
        self.z = torch.zeros(3, device=device)
        self.graph = None
    def update(self):
        s, z = self.state, self.z
        new = s.mean + s.gain * (z - s.mean)
        WRITES
        return new.sum()
    def step(self, z, gain=0.5):
        self.z.copy_(z)
        SETS
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.update()
        self.graph.replay()
        return self.out.clone()
step, args = Filter().step, (torch.randn(3, device=device),)
"""
STATE = {
    "s.mean = new": "s.mean.copy_(new)",
    "held = s.rows; held['n'] = held['n'] + 1; s.mean.copy_(new)": "held['n'].copy_(held['n'] + 1)",
}


def told(program: str, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is told of a program's ``step``."""
    names = load(PRELUDE + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["step"], *names["args"]).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


@pytest.mark.parametrize("line", STATE)
def test_a_state_that_is_exchanged_through_a_short_name_is_told(line: str, tmp_path: Path) -> None:
    # GIVEN a captured method that gives a state another tensor, by a variable that stands for who has it
    program = PROGRAM.replace("WRITES", line).replace("SETS", "pass")
    # WHEN
    found = told(program, tmp_path)
    # THEN
    assert [(code, fix) for code, _, fix in found] == [("stale-input", STATE[line])]


def test_a_number_that_is_read_through_a_short_name_is_told_by_its_whole_path(tmp_path: Path) -> None:
    # GIVEN a captured method that reads a number by such a variable, and a step that sets it
    program = PROGRAM.replace("WRITES", "s.mean.copy_(new)").replace("SETS", "self.state.gain = self.state.gain * 0.9")
    # WHEN
    found = told(program, tmp_path)
    # THEN
    assert [(code, line) for code, line, _ in found] == [("scalar-frozen", "self.state.gain = self.state.gain * 0.9")]


def test_what_is_written_in_place_through_a_short_name_is_right(tmp_path: Path) -> None:
    # GIVEN the same with a state that is written in place, and one that each call makes anew by that name
    program = PROGRAM.replace("SETS", "pass").replace(
        "WRITES", "s.mean.copy_(new); own = Carried(); own.mean = new * 2"
    )
    # WHEN
    found = told(program, tmp_path)
    # THEN
    assert not found
