"""A line that adds what it reads to what lies on the device keeps the tensor: behind the launch it would be late."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
KEPT = """import numpy as np
import torch, paramgraph_kit as pgk
device = pgk.device()
class Running:
    def __init__(self):
        self.best = torch.zeros((), device=device)
    def grow(self, x):
        self.best.mul_(0.9).add_(0.1 * float(x.mean()))
    def scaled(self, x):
        return x / (self.best.abs() + 1)
    def step(self, x):
        LINE
        return RESULT
running = Running()
"""
WORDS = {  # what is written, and what is returned: the line that stands for it
    ("self.best += x.max().item()", "self.best.clone()"): "self.best += x.max().detach()",
    ("self.best.fill_(x.max().item())", "(x - self.best.sqrt()).sum()"): "self.best.fill_(x.max().detach())",
    ("self.grow(x)", "self.scaled(x)"): "self.best.mul_(0.9).add_(0.1 * x.mean().detach())",
    ("best = self.best; best.add_(x.mean().item())", "self.best.abs()"): "best.add_(x.mean().detach())",
}


def _asked(folder: Path, line: str, result: str, fix: bool = False) -> pgk.Diagnosis:
    text = KEPT.replace("LINE", line).replace("RESULT", result)
    running = load(text, folder / "running.py")["running"]
    return pgk.diagnose(running.step, torch.randn(5, device=pgk.device()), fix=fix)


@pytest.mark.parametrize(("line", "result"), WORDS)
def test_what_is_read_stays_where_the_state_is(tmp_path: Path, line: str, result: str) -> None:
    """GIVEN a step that adds a number it reads to a tensor that later lines read by a method, or in another function
    WHEN it is diagnosed
    THEN the words keep the tensor, and do not send the line behind the launch.
    """
    told = str(_asked(tmp_path, line, result))
    assert WORDS[line, result] in told
    assert "behind each launch" not in told
    assert "after each launch" not in told


def test_what_takes_a_number_alone_ends_the_capture(tmp_path: Path) -> None:
    """GIVEN such a line that computes by NumPy, for which nothing of the device stands
    WHEN it is diagnosed
    THEN what is captured ends before it, as the next line reads what it writes.
    """
    line = "self.best.fill_(float(np.log1p(x.abs().sum().item())))"
    told = str(_asked(tmp_path, line, "x * self.best.exp()"))
    assert "end what is captured before line 12" in told


def test_what_nothing_reads_below_goes_behind(tmp_path: Path) -> None:
    """GIVEN the same line as the last one, where the step reads the state above it alone
    WHEN it is diagnosed
    THEN it goes behind the launch as ever.
    """
    line = "y = x * self.best.exp(); size = self.best.shape\n        "
    line += "self.best.fill_(float(np.log1p(x.sum().abs().item())))"
    told = str(_asked(tmp_path, line, "y"))
    assert "nothing in the step waits for it" in told


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("line", "result"),
    [*WORDS, ("self.best.fill_(max(self.best.item() * 0.9, x.max().item()))", "x / self.best.clamp(min=1.0)")],
)
def test_the_same_is_written_and_gives_the_same_numbers(tmp_path: Path, line: str, result: str) -> None:
    """GIVEN the same
    WHEN it is asked for a fix
    THEN all of it is in one graph, with eager's numbers.
    """
    found = _asked(tmp_path, line, result, fix=True)
    assert found.fix.complete
    assert "launch" not in found.fix.diff
