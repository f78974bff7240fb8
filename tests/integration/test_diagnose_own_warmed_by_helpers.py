"""Warm-ups through a function that names what it is given otherwise, where the capture has its own lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

def warm_up(net, opt, batch):
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            opt.zero_grad(set_to_none=True)
            net(batch).square().mean().backward()
            STEPS
    cuda.current_stream().wait_stream(side)

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    static = torch.ones(3, 4, device=device)
    kept = [p.detach().clone() for p in model.parameters()]
    warm_up(model, optimizer, static)
    BACK
    optimizer.zero_grad(set_to_none=True)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        model(static).square().mean().backward()
        optimizer.step()
    for _ in range(3):
        static.copy_(torch.rand(3, 4, device=device))
        g.replay()
    return [p.detach().cpu() for p in model.parameters()]
"""
BACK = "[p.data.copy_(old) for p, old in zip(model.parameters(), kept)]"


@pytest.mark.parametrize(
    ("steps", "back", "noted"), [("opt.step()", "pass", True), ("opt.step()", BACK, False), ("pass", "pass", False)]
)
def test_what_a_helper_moves_is_noted_by_the_programs_names(steps: str, back: str, noted: bool, tmp_path: Path) -> None:
    # GIVEN a program whose warm-up is another function's, which trains or not, and which may be put back
    names = load(PROGRAM.replace("STEPS", steps).replace("BACK", back), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN what it has moved for good is noted, by the names around the capture
    assert ("has moved `model`'s weights" in " ".join(str(found).split())) == noted, found


NESTED = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Trainer:
    def __init__(self, graphed=True):
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.x, self.graphed, self.graph = torch.zeros(3, 4, device=device), graphed, None

    def learn(self):
        self.opt.zero_grad(set_to_none=False)
        self.net(self.x).square().mean().backward()
        STEP

    def prepare(self):
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                self.learn()
        cuda.current_stream().wait_stream(side)

    def update(self, x):
        self.x.copy_(x)
        if not self.graphed:
            self.learn()
        else:
            if self.graph is None:
                self.prepare()
                self.graph = cuda.CUDAGraph()
                with cuda.graph(self.graph):
                    self.learn()
            self.graph.replay()
"""


@pytest.mark.parametrize(("step", "noted"), [("self.opt.step()", True), ("pass", False)])
def test_a_warm_up_in_a_branch_of_a_branch_is_noted(step: str, noted: bool, tmp_path: Path) -> None:
    # GIVEN a step that warms up where it has no graph yet, in a branch of another one
    trainer = load(NESTED.replace("STEP", step), tmp_path / "program.py")["Trainer"]()
    # WHEN it is diagnosed
    found = pgk.diagnose(trainer.update, torch.ones(3, 4, device=pgk.device()))
    # THEN
    assert any("has moved `self.net`'s weights" in note for note in found.notes) == noted, found
