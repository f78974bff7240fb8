"""Words for a line are whole: what is written so asks the host for nothing that it asked for before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.new_lines import still_asks
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")
FLOW = """
class Flow:
    def __init__(self): self.u, self.h, self.best, self.near = torch.rand(8, device=device), 0.5, 9.0, None
    def rebuild(self): self.near, self.then = (self.u > 0.5).nonzero(), self.u.clone()
    def step(self, x):
        LINES
        return self.u + x
flow = Flow()
args = (torch.rand(8, device=device),)
def f(x): return flow.step(x)
"""
LIMIT = "dt = min(0.05, 0.4 * self.h / max(self.u.abs().max().item(), 1e-6))\n        self.u.copy_(self.u + dt * x)"
DRAWN = "self.u.mul_(0.9)\n        if random.random() < math.exp(min(0.0, x.sum().item())):\n            self.u += x"
TORCHS = "dt = (0.4 * self.h / self.u.abs().max().detach().clamp(min=1e-06)).clamp(max=0.05)"
WORDS = {"two bounds": (LIMIT, TORCHS), "an exponential, which decides": (DRAWN, "behind the launch")}
NOISE = """
class Planner:
    def __init__(self): self.u, self.sigma = torch.zeros(4, device=device), 0.5
    def act(self, x):
        noise = torch.from_numpy(np.random.standard_normal((8, 4)).astype(np.float32)).to(device) * self.sigma
        return (self.u + noise + x).sum(0)
planner = Planner()
args = (torch.rand(4, device=device),)
def f(x): return planner.act(x)
"""
PARTS = {
    "a bound": ("dt = min(0.5, x.item())", "dt = min(0.5, x.detach())", True),
    "a bound of torch's": ("dt = min(0.5, x.item())", "dt = x.detach().clamp(max=0.5)", False),
    "a test by a name": ("if a or x > 0:", "asked = a | (x > 0)\nif asked:", True),
    "a test that stays": ("if a.item() > 0:", "if flag:", False),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_for_a_line_are_whole(name: str, tmp_path: Path) -> None:
    # GIVEN a line of which torch can do a part WHEN diagnosed, without a trial
    lines, told = WORDS[name]
    names = run(FLOW.replace("LINES", lines), tmp_path)
    found = next(each for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "sync-item")
    after = found.fix.partition("after   ")[2]
    # THEN what it says to write asks for nothing, and no half of it is told
    assert told in after, found.fix


@pytest.mark.parametrize("name", PARTS)
def test_half_of_a_line_is_known(name: str) -> None:
    # GIVEN a line before and after WHEN it is looked at THEN it is known whether the host asks as before
    gone, new, asks = PARTS[name]
    assert still_asks([gone], new.split("\n")) is asks


def test_what_is_computed_with_what_the_host_makes_stays(tmp_path: Path) -> None:
    # GIVEN noise of the host's that a line multiplies WHEN diagnosed
    names = run(NOISE, tmp_path)
    told = pgk.diagnose(names["f"], *names["args"])
    # THEN the noise alone is copied ahead, and the line goes on multiplying
    found = next(each for each in told if each.code == "copy-to-gpu")
    assert "here `noise = noise_in * self.sigma`" in found.fix, found.fix
