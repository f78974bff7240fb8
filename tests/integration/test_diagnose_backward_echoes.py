"""What autograd alone runs otherwise in another call is no line of its own: what decided it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import torch, paramgraph_kit as pgk
nn, F = torch.nn, torch.nn.functional
device = pgk.device()
args = (torch.linspace(-1, 1, 12, device=device).reshape(4, 3),)
class Step:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
        self.n = 0
    def near(self, a, b):
        sim = a @ b.t()
        return sim.square().mean()
    def __call__(self, x):
        self.n += 1
        LINES
        loss.backward()
        return loss.detach()
f = Step()
"""
CASES = {
    "a graph of gradients from some call on": (
        [
            "fast = dict(self.net.named_parameters())",
            "loss = 0.0",
            "for w in (0.5, 1.0):",
            "    inner = torch.func.functional_call(self.net, fast, (x,)).square().mean()",
            "    grads = torch.autograd.grad(inner, [*fast.values()], create_graph=self.n > 7)",
            "    fast = {k: v - 0.1 * g for (k, v), g in zip(fast.items(), grads)}",
            "    loss = loss + w * torch.func.functional_call(self.net, fast, (x,)).square().mean()",
        ],
        "create_graph=self.n > 7",
    ),
    "one more loss from some call on": (
        [
            "out = self.net(x)",
            "loss = self.near(out, out)",
            "if self.n > 7:",
            "    loss = loss + self.near(out, x[:, :2])",
        ],
        "if self.n > 7:",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_only_what_decides_is_told_as_a_branch(name: str, tmp_path: Path) -> None:
    # GIVEN a step whose backward pass runs more from some call on WHEN it is diagnosed THEN only its cause is a branch
    lines, text = CASES[name]
    names = load(HEAD.replace("LINES", "\n        ".join(lines)), tmp_path / "program.py")
    for _ in range(2):
        names["f"](*names["args"])
    told = [f for f in pgk.diagnose(names["f"], *names["args"]).failures if f.code == "branch-frozen"]
    assert [f.frame is not None and text in f.frame.text for f in told] == [True], told
