"""Words for a branch of the host that nothing in the step comes of: the whole call behind the launch, or the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

EMA = """
class EMA:
    def __init__(self):
        self.mean, self.step, self.stats = torch.zeros(4, device=device), 0, {}
    def update(self, x):
        self.step += 1
        if self.step <= 3:
            self.mean.copy_(x)
            return
        self.mean.lerp_(x, 0.1)
ema = EMA()
def f(x):
    y = x * 2
    STEP
    return y
args = (torch.ones(4, device=device),)
"""
CALLED = "take `ema.update(y)`, line 23, out of `f`, and call it behind each launch"
STEPS = {
    "ema.update(y)": CALLED,
    "ema.update(y); y = y - ema.mean": "",  # something of the step comes of it
    "for _ in range(2): ema.update(y)": "",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_helper_that_a_step_calls_last_goes_behind_with_its_branch(step: str, tmp_path: Path) -> None:
    # GIVEN a step whose average begins by a branch on its own count
    names = run(EMA.replace("STEP", step), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN the branch is told with the call, where all that the step does behind that is to return
    told = next(f.fix for f in found.failures if f.code == "branch-frozen")
    assert (CALLED in told) == bool(STEPS[step]), told


def test_a_branch_that_keeps_a_number_is_told_to_go_behind(tmp_path: Path) -> None:
    # GIVEN a step that keeps its loss now and then, as a number for whoever looks at it
    step = 'if ema.step % 100 == 7:\n        ema.stats["y"] = y.sum().item() / 2\n    ema.step += 1'
    names = run(EMA.replace("STEP", step), tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN nothing is chosen on the device for that
    told = next(f.fix for f in found.failures if f.code == "branch-frozen")
    assert "behind each launch" in told
    assert "torch.where" not in told
