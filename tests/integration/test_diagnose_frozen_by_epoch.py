"""A branch that only takes gradients away, by a number that a loop around the step sets, runs nothing on the device."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.programs.running import load

PROGRAM = """import torch
import paramgraph_kit as pgk
device = pgk.device()
class Trainer:
    def __init__(self):
        self.body, self.head = torch.nn.Linear(4, 4).to(device), torch.nn.Linear(4, 4).to(device)
        self.opt = torch.optim.SGD([*self.body.parameters(), *self.head.parameters()], lr=0.1)
        self.epoch = 0
    def step(self, x):
        self.opt.zero_grad()
        loss = self.head(self.body(x)).square().mean()
        loss.backward()
        if TEST:
            for p in self.head.parameters():
                p.grad = None
        self.opt.step()
        return loss.detach()
trainer = Trainer()
def fit(x):
    for epoch in range(3):
        trainer.epoch = epoch
        for _ in range(2):
            trainer.step(x)
f, args = trainer.step, (torch.ones(2, 4, device=device),)
"""


@pytest.mark.parametrize(("test", "told"), [("self.epoch < 1", True), ("len(args) > 1", False)])
def test_the_branch_is_told_where_the_optimizer_meets_others(test: str, told: bool, tmp_path: Path) -> None:
    # GIVEN a step that leaves out the head's gradients in the first epoch, or never
    names = load(PROGRAM.replace("TEST", test), tmp_path / "program.py")

    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"]).failures

    # THEN the branch is told, and not the optimizer's line alone
    lines = [f.frame.text for f in found if f.code == "branch-frozen" and f.frame]
    assert lines == [f"if {test}:"] * told
    assert bool(found) is told
