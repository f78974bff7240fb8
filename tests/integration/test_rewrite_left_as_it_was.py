"""What no edit has touched is told as left where replays of the rewritten lines differ, and not as in the diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LAZY = """\
class Lazy:
    def __init__(self):
        self.D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        self.opt = torch.optim.SGD(self.D.parameters(), lr=0.1)
        self.it, self.signs, self.p = 0, [], 0.1
    def penalty(self, real):
        real = (real + self.p * real.flip(0)).requires_grad_(True)
        out = self.D(real)
        loss = out.mean()
        self.note(out.detach())
        if self.it % 3 == 0:
            (grad,) = torch.autograd.grad(out.sum(), real, create_graph=True)
            loss = loss + grad.pow(2).sum()
        return loss
    def note(self, out):
        self.signs.append(out.sign().mean())
    def adjust(self):
        self.p = min(max(self.p + 0.1 * torch.stack(self.signs).mean().item(), 0.0), 1.0)
        self.signs.clear()
    def f(self, x):
        loss = self.penalty(x)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.it += 1
        if self.it % 2 == 0:
            self.adjust()
        return loss.detach()
lazy = Lazy()
f = lazy.f
args = (torch.randn(3, 4, device=device),)
"""


def test_a_branch_that_the_diff_does_not_touch_is_told_where_replays_differ(tmp_path: Path) -> None:
    # GIVEN a step with a penalty in some steps only, which a counter decides that moves behind the launch
    names = run(LAZY, tmp_path)
    # WHEN it is diagnosed with a fix that is not whole
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert not fix.complete, fix
    # THEN the branch and the number are among what is left, with what to do
    told = "\n".join(fix.instead)
    assert "chosen_in.fill_(self.it % 3 == 0)" in told, fix
    assert "p_in.fill_(self.p)" in told, fix
