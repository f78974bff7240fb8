"""Gradients of graphs that a first call captures: later calls find them, and who has asked finds those of before."""

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
        torch.manual_seed(0)
        self.model = nn.Linear(8, 1).to(device)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x, self.graph = torch.zeros(4, 8, device=device), None
    def capture(self):
        self.model(self.x).square().mean().backward()
        self.opt.zero_grad(set_to_none=True)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.model(self.x).square().mean()
            self.loss.backward()
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        for p in self.model.parameters():
            p.grad.zero_()
        self.graph.replay()
        self.opt.step()
        return self.loss.clone()
learner = Learner()
args = (torch.randn(4, 8, device=device),)
"""


@pytest.mark.parametrize("there", [False, True])
def test_a_later_call_finds_the_gradients_that_the_first_has_captured(there: bool, tmp_path: Path) -> None:
    # GIVEN a learner that captures in its first call, and zeroes what the graph writes with p.grad.zero_()
    names = load(PRELUDE + LEARNER, tmp_path / "program.py")
    learner = names["learner"]
    parameters = [*learner.model.parameters()]
    for p in parameters if there else ():
        p.grad = torch.ones_like(p)
    before = [(p.detach().clone(), p.grad) for p in parameters]
    # WHEN
    found = pgk.diagnose(learner.step, *names["args"])
    # THEN nothing is told, and all is as it was, whatever gradients were there
    assert found.failures == ()
    assert learner.graph is None
    assert all(p.grad is grad and torch.equal(p, value) for p, (value, grad) in zip(parameters, before, strict=True))
    assert all(bool((p.grad == 1).all()) for p in parameters if p.grad is not None)
