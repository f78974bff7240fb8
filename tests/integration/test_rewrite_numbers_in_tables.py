"""Numbers that steps put into dictionaries for others, and that rewritten lines leave in tensors: it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

ACTOR = """
class Actor:
    def __init__(self):
        self.net = nn.Linear(5, 2).to(device)
        self.heat = torch.zeros(1, device=device, requires_grad=True)
        self.opt = torch.optim.Adam([*self.net.parameters(), self.heat], lr=1e-2, capturable=True)
        self.info, self.n = {}, 0
    def f(self, x):
        heat = self.heat.exp().item()
        out = torch.tanh(self.net(x))
        loss = (heat * out - x[:, :2]).pow(2).mean() + (self.heat * out.detach()).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.n += 1
        if self.n % 2 == 0:
            with torch.no_grad():
                self.net.bias.mul_(0.9)
        {keep}
        return loss.detach()
actor = Actor()
f, args = actor.f, (torch.randn(6, 5, device=device),)
"""


@pytest.mark.parametrize(
    "keep",
    [
        'self.info = {"loss": loss.item(), "heat": heat}',
        'self.info["loss"] = loss.item()\n        self.info["heat"] = heat',
    ],
)
def test_entries_that_were_numbers_are_told_where_they_are_tensors(keep: str, tmp_path: Path) -> None:
    # GIVEN a step that leaves numbers in a dictionary, one of which it also computes with
    names = run(ACTOR.replace("{keep}", keep), tmp_path)
    # WHEN it is rewritten so that they stay on the device
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN it says that each launch writes the same ones, and what to read instead
    assert fix is not None
    assert fix.complete, fix
    told = "".join(line for line in fix.verified if "from now on where" in line)
    assert 'info["loss"]' in told, fix
    assert "float(" in told
    assert ("heat.item()" in fix.diff.partition("# after each launch")[2]) is not ('info["heat"]' in told), fix


def test_entries_that_stay_numbers_are_not_told(tmp_path: Path) -> None:
    # GIVEN the same, whose numbers nothing on the device reads again
    text = ACTOR.replace("{keep}", 'self.info = {"loss": loss.item(), "n": self.n}')
    names = run(text.replace("self.heat.exp().item()", "self.heat.detach().exp()"), tmp_path)
    # WHEN it is rewritten THEN they are read behind the launch, and nothing is said of tensors
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete, fix
    assert not [line for line in fix.verified if "from now on where" in line], fix
