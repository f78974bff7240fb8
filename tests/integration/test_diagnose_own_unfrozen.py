"""Layers that are unfrozen in turn: graphs are told apart by all parameters that learn, not by the first that moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.captured_arguments import as_key
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]

PROGRAM = """
import torch
import paramgraph_kit as pgk
device = pgk.device()
net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Trainer:
    def __init__(self): self.x, self.graph = torch.zeros(2, 4, device=device), None
    def _step(self):
        opt.zero_grad(set_to_none=True)
        loss = net(self.x).square().mean()
        loss.backward()
        opt.step()
        return loss
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self._step()
            self.graph = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(self.graph):
                self.loss = self._step()
        self.graph.replay()
        return self.loss.clone()
trainer = Trainer()
def unfreeze(n):
    for i, layer in enumerate(net):
        for p in layer.parameters():
            p.requires_grad_(i >= 2 - n)
def main():
    for epoch in range(3):
        unfreeze(epoch)
        for _ in range(3):
            trainer.step(torch.randn(2, 4, device=device))
"""


@pytest.mark.sweep
def test_graphs_of_layers_unfrozen_in_turn_have_all_flags_in_their_key(tmp_path: Path) -> None:
    # GIVEN a graph of its own for a net whose layers are unfrozen in turn WHEN the loop is diagnosed
    found = str(pgk.diagnose(load(PROGRAM, tmp_path / "program.py")["main"]))

    # THEN a graph for each has the flags of all parameters in its key
    assert "if tuple(p.requires_grad for p in net.parameters()) not in graphs" in found


def test_the_key_of_what_learns_has_all_parameters() -> None:
    # GIVEN modules with several parameters and with one WHEN a flag of one is to be a key THEN it is that of all
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False))
    assert as_key("net", "0.weight.requires_grad", net) == "tuple(p.requires_grad for p in net.parameters())"
    assert as_key("one", "weight.requires_grad", net[1]) == "one.weight.requires_grad"
    assert as_key("net", "1.training", net) == "net[1].training"
    assert as_key("scale", "", 3) == "scale"
