"""Truths that are given to torch and that a counter decides: they are frozen as a branch is."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
STEP = """import torch, paramgraph_kit as pgk
nn, F = torch.nn, torch.nn.functional
device = pgk.device()
args = (torch.ones(4, 3, device=device),)
class Step:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.i = 0
    def __call__(self, x):
        LINES
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.i += 1
        return loss.detach()
f = Step()
"""
LOSS = "loss = self.net(x).square().mean()"
WRONG = {
    "gradients": [
        "with torch.set_grad_enabled(self.i % 90 != 50):",
        "    h = self.net[0](x)",
        "loss = h.mean() + self.net[2](h).mean()",
    ],
    "a mode": ["self.net.train(self.i < 500)", LOSS],
    "what is learnt": ["late = self.i > 400", "self.net[2].requires_grad_(late)", LOSS],
    "a graph of gradients": [
        LOSS,
        "g, = torch.autograd.grad(loss, [self.net[0].weight], create_graph=self.i > 500)",
        "loss = self.net(x).mean() + g.sum()",
    ],
    "a function's mode": ["loss = F.dropout(self.net(x), 0.5, training=self.i < 400).mean()"],
}
RIGHT = {
    "a mode of its own": ["self.net.train(self.net.training)", LOSS],
    "a size": ["with torch.set_grad_enabled(x.shape[0] > 2):", "    " + LOSS],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_flag_that_a_counter_decides_is_told(name: str, tmp_path: Path) -> None:
    # GIVEN a flag that is another one many calls later WHEN it is diagnosed THEN its line is told beside the counter's
    names = load(STEP.replace("LINES", "\n        ".join(WRONG[name])), tmp_path / "program.py")
    told = {f.frame.text: f.code for f in pgk.diagnose(names["f"], *names["args"]).failures if f.frame}
    assert [code for text, code in told.items() if "self.i " in text or "(late)" in text][:1] == ["branch-frozen"], told


@pytest.mark.parametrize("name", RIGHT)
def test_one_that_nothing_moves_is_none(name: str, tmp_path: Path) -> None:
    # GIVEN a flag that is the same in each call WHEN it is diagnosed THEN only the counter is told
    names = load(STEP.replace("LINES", "\n        ".join(RIGHT[name])), tmp_path / "program.py")
    assert pgk.diagnose(names["f"], *names["args"]).codes == ("host-counter",)
