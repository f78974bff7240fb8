"""What is told of a program's own replays names what the program has: its rate, its tensors, each of its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
LEARNER = """
class Learner:
    def __init__(self):
        self.net = nn.Linear(4, 2).to(device)
        self.opt = OPTIMIZER
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, step_size=2, gamma=0.5)
        self.x, self.graph = torch.zeros(3, 4, device=device), None
    def _update(self):
        self.opt.zero_grad(set_to_none=True)
        self.net(self.x).square().mean().backward()
        self.opt.step()
    def update(self, x):
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self._update()
        self.x.copy_(x)
        self.graph.replay()
        self.sched.step()
def main():
    learner = Learner()
    for _ in range(4):
        learner.update(torch.randn(3, 4, device=device))
"""
RATES = {
    "torch.optim.SGD(self.net.parameters(), lr=0.25, momentum=0.9)": "fused=True: it waits for the rate otherwise",
    "torch.optim.AdamW(self.net.parameters(), lr=0.25, capturable=True)": "capturable=True",
}


def diagnosed(text: str, tmp_path: Path) -> pgk.Diagnosis:
    """What is found in a program's ``main``."""
    return pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"])


@pytest.mark.parametrize("made", RATES)
def test_a_frozen_rate_is_told_with_the_optimizers_own_rate_and_what_its_class_takes(made: str, tmp_path: Path) -> None:
    # GIVEN a capture that holds an optimizer's step, whose scheduler steps in another function
    program = LEARNER.replace("OPTIMIZER", made)
    # WHEN
    found = diagnosed(program, tmp_path)
    # THEN the words have its own rate and device, and no argument that its class does not know
    fix = next(f.fix for f in found.failures if f.code == "learning-rate-frozen")
    words = f"with lr=torch.tensor(0.25, device='sim') where the optimizer is made, and {RATES[made]}; what gives"
    words += " the next rate, as a scheduler's step(), stands behind self.graph.replay()"
    assert fix == f"before  self.opt.step()\nafter   self.opt.step(), {words}"
