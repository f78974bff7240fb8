"""A helper that the part of a step runs by a table reads a number that the loop sets: its line says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
def soft(out, heat):
    return torch.log_softmax(out / heat, dim=1).square().mean()
def plain(out, heat):
    return out.square().mean()
TABLE = {"soft": soft, "plain": plain}
class Learner:
    def __init__(self):
        self.net, self.heat, self.kinds = nn.Linear(6, 3).to(device), 2.0, ("soft", "plain")
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
    def step(self, x):
        out = self.net(x)
        parts = {name: TABLE[name](out, self.heat) for name in self.kinds}
        loss = sum(parts.values())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach(), {k: v.detach() for k, v in parts.items()}
learner = Learner()
f, inputs = learner.step, (torch.ones(4, 6, device=device),)
def main():
    rates = torch.optim.lr_scheduler.StepLR(learner.opt, 2)
    for k in range(6):
        learner.heat = 2.0 - 0.2 * k
        learner.step(torch.ones(4, 6, device=device))
        rates.step()
if __name__ == "__main__":
    main()
"""


def test_a_line_of_a_helper_that_the_part_runs_is_not_said_to_be_beside_it(tmp_path: Path) -> None:
    # GIVEN a step whose helper, of a table, reads a number that a loop sets WHEN a fix is asked for
    names = load(PROGRAM, tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"], fix=True)
    # THEN of its line is said that the graph is captured again, where the diff has a part
    (told,) = [f for f in diagnosis if f.code == "scalar-frozen"]
    assert "beside the part" not in told.fix, str(diagnosis)
    assert "captured again behind" in told.fix, str(diagnosis)
