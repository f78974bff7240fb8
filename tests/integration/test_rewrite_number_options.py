"""A number that a step moves, and that torch takes as an option which is no tensor: ``alpha=``."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramgraph_kit import diagnose
from paramgraph_kit.rewrite import by_hand
from paramgraph_kit.rewrite.ways import Ways
from tests.integration.rewritten import run

SOLVER = """
class Solver:
    def __init__(self):
        self.u, self.out = torch.ones(4, device=device), torch.zeros(4, device=device)
        self.wind, self.dt, self.t = torch.ones(4, device=device), 0.2, 0.0
    def choose(self):
        speed = self.wind.abs().max().item()
        self.dt = min(0.2, 0.3 / max(speed, 1e-6))
    def advance(self, wind):
        self.wind.copy_(wind)
        self.choose()
        rate = self.wind - self.u
        {line}
        self.t += self.dt
        return self.out.sum()
f = Solver().advance
args = (torch.randn(4, device=device),)
"""


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("torch.add(self.u, rate, alpha=self.dt, out=self.out)", "`torch.add(self.u, rate * (dt_in), out=self.out)`"),
        ("self.out.add_(rate, alpha=-self.dt)", "`self.out.add_(rate * (-dt_in))`"),
        ("self.out.addcmul_(rate, self.u, value=self.dt)", "`self.out.addcmul_(rate * (dt_in), self.u)`"),
        ("self.out.copy_(self.u + self.dt * rate)", ""),
    ],
)
def test_an_option_that_is_no_tensor_is_told_as_a_factor(line: str, wanted: str, tmp_path: Path) -> None:
    # GIVEN a step that moves a number by what it reads, and gives it to torch
    names = run(SOLVER.format(line=line), tmp_path)
    failures = diagnose(names["f"], *names["args"]).failures
    # WHEN nothing of it is rewritten
    lines = by_hand.lines(Ways(names["f"], names["args"], {}), failures)
    # THEN where torch takes Python's numbers only, a factor has the tensor; an expression takes it as it is
    told = next((each for each in lines if "`dt_in` for `self.dt` in the step" in each), "")
    assert told, lines
    assert wanted in told if wanted else "alpha" not in told, lines
