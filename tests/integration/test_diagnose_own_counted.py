"""Steps that count their calls, and capture in a later one: what the calls before it have made is there."""

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
TRAINER = """
class Trainer:
    def __init__(self):
        self.model = nn.Linear(6, 2).to(device)
        self.opt = OPTIMIZER
        self.x = torch.zeros(4, 6, device=device)
        self.graph, self.calls = None, 0
    def body(self, steps):
        self.opt.zero_grad(set_to_none=True)
        loss = self.model(self.x).pow(2).mean()
        loss.backward()
        if steps:
            self.opt.step()
        return loss.detach()
    def step(self, x):
        self.x.copy_(x)
        self.calls += 1
        if self.calls <= 3:
            s = cuda.Stream()
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                loss = self.body(FIRST)
            cuda.current_stream().wait_stream(s)
            return loss.clone()
        if self.graph is None:
            self.opt.zero_grad(set_to_none=True)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.body(True)
        self.graph.replay()
        return self.loss.clone()
trainer, x = Trainer(), torch.ones(4, 6, device=device)
"""
OPTIMIZERS = (
    "torch.optim.Adam(self.model.parameters(), capturable=True)",
    "torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)",
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [True, False])
def test_a_state_that_earlier_calls_have_made_is_not_that_of_a_capture(
    steps: bool, optimizer: str, tmp_path: Path
) -> None:
    # GIVEN a step whose first three calls are steps as they are, or warm up without one, and whose fourth captures
    text = PRELUDE + TRAINER.replace("OPTIMIZER", optimizer).replace("FIRST", str(steps))
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["trainer"].step, names["x"]).failures
    # THEN a state that the capture makes is told, and none that is only put back between the calls of a diagnosis
    assert ["makes its state in its first step" in f.message for f in found] == [True][: steps is False], found


EMPTIED = """
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
def main():
    x, graph = torch.zeros(3, 4, device=device), cuda.CUDAGraph()
    def body():
        opt.zero_grad(set_to_none=True)
        net(x).pow(2).mean().backward()
        opt.step()
    s = cuda.Stream()
    with cuda.stream(s):
        body()
    cuda.current_stream().wait_stream(s)
    opt.state.clear()
    opt.zero_grad(set_to_none=True)
    with cuda.graph(graph):
        body()
    for i in range(3):
        x.copy_(torch.full((3, 4), 1.0 + i))
        graph.replay()
"""


def test_a_state_that_is_emptied_behind_the_warm_up_is_made_by_the_capture(tmp_path: Path) -> None:
    # GIVEN a program with an optimizer of its file's, whose warm-up steps are undone by an empty state
    names = load(PRELUDE + EMPTIED, tmp_path / "program.py")
    # WHEN it is diagnosed THEN the step in the capture is told: it makes the state, in each replay anew
    found = pgk.diagnose(names["main"]).failures
    assert any("makes its state in its first step" in f.message for f in found), found
