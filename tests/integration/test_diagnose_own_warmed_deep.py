"""Warm-ups that move what an object of an object has, and what is written there so that nothing is moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Average:
    def __init__(self, net):
        self.net = nn.Linear(3, 2).to(device).requires_grad_(False)
        self.count = torch.zeros((), device=device)
    @torch.no_grad()
    def update(self, net):
        self.count += 1
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.lerp_(theirs, 0.5)
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2).to(device)
        self.average = Average(self.net)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2, capturable=True)
        self.x = torch.zeros(4, 3, device=device)
        self.graph = None
    def once(self):
        self.opt.zero_grad()
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.opt.step()
        self.average.update(self.net)
        return loss.detach()
    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            held = [p.detach().clone() for p in self.net.parameters()]
            WARMS
            with torch.no_grad():
                [p.copy_(h) for p, h in zip(self.net.parameters(), held)]
            for state in self.opt.state.values(): [v.zero_() for v in state.values() if torch.is_tensor(v)]
            self.opt.zero_grad(set_to_none=True)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.once()
        self.graph.replay()
        return self.loss.clone(), self.average.net.weight.clone()
step, args = Trainer().step, (torch.randn(4, 3, device=device),)
"""
WHOLE = """side = cuda.Stream(); side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                self.once()
            cuda.current_stream().wait_stream(side)"""


def diagnosed(warms: str, tmp_path: Path) -> pgk.Diagnosis:
    """What is told of such a program."""
    names = load(PRELUDE + PROGRAM.replace("WARMS", warms), tmp_path / "program.py")
    with quiet():
        return pgk.diagnose(names["step"], *names["args"])


def test_what_an_object_of_an_object_has_is_named_where_a_warm_up_moves_it(tmp_path: Path) -> None:
    # GIVEN a warm-up that moves an average and its count, of which only weights and optimizer are put back
    # WHEN it is diagnosed
    found = diagnosed(WHOLE, tmp_path)
    # THEN a note names the others
    notes = [note for note in found.notes if "the warm-up at line" in note]
    assert ["`self.average.net`'s weights and `self.average.count`" in note for note in notes] == [True]


def test_the_words_for_a_first_step_move_nothing_else(tmp_path: Path) -> None:
    # GIVEN the words for an optimizer whose state its capture begins
    words = diagnosed("self.net(self.x).sum().backward()", tmp_path).failures[0].fix.partition("after   ")[2]
    # WHEN its lines are written there
    lines = [line for line in re.findall(r"`([^`]+)`", words) if line.startswith(("for group", "self.opt.step"))]
    found = diagnosed("\n            ".join(["self.net(self.x).sum().backward()", *lines]), tmp_path)
    # THEN nothing is left, and nothing else has moved
    assert (found.failures, [note for note in found.notes if "warm-up" in note]) == ((), [])
