"""What a helper makes a tensor of where words give it a tensor for a number, and what is left behind a launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
ADAPTIVE = """
class Heun:
    def __init__(self, y):
        self.y = y
        self.t = 0.0
        self.h = 0.05
        self.bad = 0
        self.first = None

    def slope(self, t, y, push):
        return push * torch.sin(torch.tensor(2.0 * t, device=device)) - y

    def trial(self, push):
        h, t, y = self.h, self.t, self.y
        a = self.first if self.first is not None else self.slope(t, y, push)
        b = self.slope(t + h, y + h * a, push)
        return y + h / 2 * (a + b), (h / 2 * (b - a)).abs().max(), b

    def step(self, push):
        y, err, b = self.trial(push)
        e = err.item()
        if e <= 0.01:
            self.t += self.h
            self.y = y
            self.first = b
        else:
            self.bad += 1
        self.h *= min(2.0, max(0.3, 0.9 * (0.01 / (e + 1e-9)) ** 0.5))
        return self.y


solver = Heun(torch.randn(16, device=device))
f = solver.step
args = (torch.rand(16, device=device),)
"""


def test_a_helper_makes_its_tensor_of_the_tensor_that_it_is_given(tmp_path: Path) -> None:
    # GIVEN a solver with its own time, of which a helper makes a tensor, and whose words give that helper `t_in`
    made = run(ADAPTIVE, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(made["f"], *made["args"], fix=True)
    # THEN the helper is told to take what it is given, tensor or number, and not to keep a graph for each time
    assert found.fix is not None
    told = "\n".join(found.fix.instead)
    assert "here `torch.as_tensor(2.0 * t, device=device)`" in told
    assert "of which each has a graph" not in told


def test_what_is_cut_off_behind_the_launch_stays_as_it_is(tmp_path: Path) -> None:
    # GIVEN the same, which is told to end where the host reads its error
    made = run(ADAPTIVE, tmp_path)
    # WHEN a fix is asked for
    found = pgk.diagnose(made["f"], *made["args"], fix=True)
    # THEN the branch and the counters behind that stay as they are
    at = next(f.frame.line for f in found if f.code == "sync-item" and f.frame is not None)
    behind = [f.fix for f in found if f.frame is not None and f.frame.line > at]
    assert len(behind) >= 4
    assert all(f"stays as it is, behind the launch with line {at}" in text for text in behind)
