"""Parts that are captured, and what the loop around their step sets between calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.doctor_programs import program

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failed captures stay out of this process")
TRAINER = """
class Learner:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)).to(device)
        self.weight = 0.0
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2, capturable=True)

    def update(self, x, y):
        loss = F.cross_entropy(self.net(x), y) + self.weight * self.net[0].weight.abs().sum()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def warm(self, i):
        self.weight = min(1.0, 0.1 * i)

    def run(self, rows):
        for i, (x, y) in enumerate(rows):
            self.warm(i)
            self.update(x, y)


learner = Learner()
step = learner.update
args = (torch.randn(4, 6, device=device), torch.randint(0, 3, (4,), device=device))
"""


def test_a_part_is_told_what_the_loop_sets_that_its_graph_keeps(tmp_path: Path) -> None:
    # GIVEN a trainer whose loop calls a method that sets a weight, which the step reads
    made = program(TRAINER, tmp_path / "annealed.py")
    # WHEN the step is rewritten, and a part of it is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN it says beside what was tried that the part keeps the weight, and what to write
    assert found.fix is not None
    told = [line for line in found.fix.verified if line.startswith("`self.weight` is set between calls")]
    assert len(told) == 1
    assert "capture again behind that line" in told[0]
    assert "self.weight.fill_(min(1.0, 0.1 * i))" in told[0]


def test_a_weight_that_is_set_once_is_no_matter_of_a_part(tmp_path: Path) -> None:
    # GIVEN the same, with a weight that is set ahead of the loop
    loop = "        for i, (x, y) in enumerate(rows):\n            self.warm(i)\n"
    once = "        self.weight = 0.5\n        for i, (x, y) in enumerate(rows):\n"
    text = TRAINER.replace(loop, once).replace(
        "    def warm(self, i):\n        self.weight = min(1.0, 0.1 * i)\n\n", ""
    )
    made = program(text, tmp_path / "once.py")
    # WHEN it is looked at
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN nothing is told of it as set between calls
    told = found.fix.verified if found.fix is not None else []
    assert not any("is set between calls" in line for line in told)


def test_a_part_is_told_the_mode_that_the_loop_sets(tmp_path: Path) -> None:
    # GIVEN the same, whose loop puts a module to eval() from some round on, which no line of the step reads
    loop = "            self.warm(i)\n"
    once = "            if i > 3:\n                self.net[1].eval()\n"
    text = TRAINER.replace(loop, once).replace(
        "torch.nn.Linear(6, 8),", "torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8),"
    )
    made = program(text, tmp_path / "modes.py")
    # WHEN it is rewritten, and a part of it is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN it says beside what was tried that the part keeps the mode
    assert found.fix is not None
    told = [line for line in found.fix.verified if line.startswith("`self.net[1].training` is set between calls")]
    assert len(told) == 1, str(found)
    assert "capture again behind that line" in told[0]


STEPPED = """
import torch, paramgraph_kit as pgk
device = pgk.device()
class Tracker:
    def __init__(self):
        self.x, self.cov, self.dt = torch.zeros(4, device=device), torch.eye(4, device=device), 1.0
    def advance(self):
        self.x = self.cov @ self.x * self.dt + 1
    def correct(self, z):
        gain = self.cov @ torch.linalg.inv(self.cov + torch.eye(4, device=device))
        self.x = self.x + gain @ (z - self.x)
        return self.x.abs().sum()
    def track(self, z):
        self.advance()
        size = self.correct(z)
        return self.x[:2] * 1, size
tracker = Tracker()
step, args = tracker.track, (torch.ones(4, device=device),)
def main():
    for k in range(6):
        tracker.dt = 0.5 * k
        tracker.track(torch.ones(4, device=device))
"""


def test_a_part_is_told_what_the_methods_read_that_it_calls(tmp_path: Path) -> None:
    # GIVEN a step whose part calls methods, of which one reads a number that the loop sets
    made = program(STEPPED, tmp_path / "methods.py")
    # WHEN it is rewritten, and a part of it is what a graph holds
    found = pgk.diagnose(made["step"], *made["args"], fix=True)
    # THEN it says beside what was tried that the part keeps the number
    assert found.fix is not None
    assert found.fix.alone
    assert any(line.startswith("`self.dt` is set between calls") for line in found.fix.verified), str(found)
