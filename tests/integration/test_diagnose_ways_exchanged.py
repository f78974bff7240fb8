"""Memory that each call exchanges, beside a branch that none of the doctor's own calls took."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import math
import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
class Learner:
    def __init__(self):
        self.net, self.slow = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device).requires_grad_(False)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.steps, self.history = 0, []
    def momentum(self):
        return 1 - 0.1 * (math.cos(math.pi * self.steps / 100) + 1) / 2
    def follow(self):
        m = self.momentum()
        for p, s in zip(self.net.parameters(), self.slow.parameters()):
            LINE
    def step(self, x):
        loss = (self.net(x) - self.slow(x)).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.follow()
        self.steps += 1
        if self.steps % 50 == 0:
            self.history.append(loss.item())
        return loss.detach()
f = Learner().step
"""


def test_what_each_call_exchanges_is_not_told_again_as_what_a_branch_brings(tmp_path: Path) -> None:
    # GIVEN a step that gives parameters other memory in each call, and logs now and then
    text = PROGRAM.replace("LINE", "s.data = s.data * m + p.data * (1 - m)")
    # WHEN it is diagnosed with a fix
    diagnosis = pgk.diagnose(load(text, tmp_path / "program.py")["f"], torch.ones(2, 4, device=pgk.device()), fix=True)
    # THEN that is told once, where it is done, and the whole can be mended
    told = [(f.code, f.frame.text.split(" = ")[0]) for f in diagnosis if f.frame is not None]
    assert ("parameter-rebound", "s.data") in told, str(diagnosis)
    assert [code for code, _ in told if code == "stale-input"] == [], str(diagnosis)
    assert diagnosis.fix is not None
    assert diagnosis.fix.complete, str(diagnosis)


SCHEDULED = PROGRAM.replace("lr=0.1)", "lr=0.1, momentum=0.9)").replace(
    "f = Learner().step",
    """    def fit(self, rows):
        for x in rows:
            self.step(x)
            self.decay.step()
f = Learner().step""",
)
SCHEDULED = SCHEDULED.replace(
    "        self.steps, self",
    "        self.decay = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.9)\n        self.steps, self",
)
FOLLOW = "m = self.momentum()\n        for p, s in zip(self.net.parameters(), self.slow.parameters()):\n            "


@pytest.mark.parametrize("inline", [False, True])
def test_what_goes_behind_the_launch_leaves_parameters_where_the_graph_reads_them(inline: bool, tmp_path: Path) -> None:
    # GIVEN a step whose rate a scheduler sets, and which gives parameters other memory behind the optimizer's step
    line = "s.data = s.data * m + p.data * (1 - m)"
    text = SCHEDULED.replace("LINE", "pass" if inline else line)
    text = text.replace("        self.follow()\n", f"        {FOLLOW}{line}\n") if inline else text
    # WHEN it is diagnosed with a fix
    fix = pgk.diagnose(load(text, tmp_path / "program.py")["f"], torch.ones(2, 4, device=pgk.device()), fix=True).fix
    # THEN it all goes behind the launch, and writes there in place
    assert fix is not None
    assert fix.complete, fix
    assert "+            s.data.copy_(s.data * m + p.data * (1 - m))" in fix.diff.splitlines(), fix
