"""What a diff goes on with outside of a loop is no part of what is told of a line in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
SCALED = """
class Scaled:
    def __init__(self, model):
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.scale, self.good = model, 1024.0, 0
        self.params = list(model.parameters())
    def step(self, x):
        self.opt.zero_grad(set_to_none=True)
        loss = self.model(x).pow(2).mean()
        (loss * self.scale).backward()
        for p in self.params:
            p.grad.div_(self.scale)
        print(f"loss {loss.item():.4f} scale {self.scale}")
        finite = torch.stack([p.grad.isfinite().all() for p in self.params]).all()
        if finite:
            self.opt.step()
            self.good += 1
            if self.good % 4 == 0:
                self.scale *= 2.0
        else:
            self.scale /= 2.0
        return loss.detach()
scaled = Scaled(nn.Linear(4, 3).to(device))
f, args = scaled.step, (torch.rand(8, 4, device=device),)
"""


def test_a_line_of_a_loop_is_told_without_what_the_diff_has_behind_the_loop(tmp_path: Path) -> None:
    # GIVEN a line at the end of a loop, behind which the diff puts what the part of a step returns
    names = run(SCALED, tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN it is told with the line that takes its place alone
    (told,) = (f for f in found if f.frame is not None and "div_" in f.frame.text)
    assert told.fix == "before  p.grad.div_(self.scale)\nafter   p.grad.div_(scale_in)"
