"""A program whose capture fails: what it does behind that is looked at with the fix in place, or said not to be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.examine import NOT_REPLAYED
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Learner:
    def __init__(self):
        self.net, self.memory = nn.Linear(4, 1).to(device), torch.randn(8, 4, device=device)
        self.losses, self.graph = [], None
    def update(self):
        rows = torch.randperm(8).to(device)
        return self.net(self.memory[rows[:4]]).mean()
    def learn(self):
        if self.graph is None:
            self.update()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.update()
        self.graph.replay()
        self.losses.append(self.loss)
def main():
    learner = Learner()
    for _ in range(3):
        learner.learn()
    return torch.stack(learner.losses)
"""


@pytest.mark.parametrize("fix", [True, False])
def test_what_stands_behind_a_capture_that_fails_is_told_with_its_fix(fix: bool, tmp_path: Path) -> None:
    # GIVEN a program that copies from the host in its capture, and keeps what each replay writes over
    names = run(PROGRAM, tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"], fix=fix)
    # THEN both are told at once, and the list's own line alone; without a fix, that the rest was not looked at
    told = {(f.code, f.frame.text) for f in found.failures if f.frame is not None}
    copied = ("copy-to-gpu", "rows = torch.randperm(8).to(device)")
    kept = ("output-alias", "self.losses.append(self.loss)")
    assert told == ({copied, kept} if fix else {copied})
    assert found.heading.startswith(f"main: {len(told)} problem")
    assert (NOT_REPLAYED in found.notes) is not fix
