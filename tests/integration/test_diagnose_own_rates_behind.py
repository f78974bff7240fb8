"""A rate that a step sets behind the replay of its own graph, asked alone: the next call's replay has the old one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

LEARNER = """
class Learner:
    def __init__(self):
        self.net = nn.Linear(4, 2).to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=RATE, capturable=True)
        self.calls, self.x, self.graph = 0, torch.zeros(8, 4, device=device), None
    def compute(self):
        loss = self.net(self.x).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.detach()
    def update(self, x):
        self.x.copy_(x)
        self.calls += 1
        if self.calls <= 2:
            return self.compute().clone()
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.compute()
        self.graph.replay()
        if self.calls % EVERY == 0:
            for group in self.opt.param_groups:
                SET
        return self.out.clone()
"""
WRONG = {
    "each call": ("0.01", "1", 'group["lr"] *= 0.8'),
    "now and then": ("0.01", "2", 'group["lr"] *= 0.8'),
    "another number": ("0.01", "1", 'group["weight_decay"] = 0.01 * self.calls'),
}
RIGHT = {
    "a tensor": ("torch.tensor(0.01, device=device)", "1", 'group["lr"].mul_(0.8)'),
    "the same": ("0.01", "1", 'group["lr"] = 0.01'),
    "captured again": ("0.01", "2", 'group["lr"] *= 0.8; self.graph = None'),
}


def ask(at: Path, rate: str, every: str, line: str, ahead: int) -> pgk.Diagnosis:
    names = load(PRELUDE + LEARNER.replace("RATE", rate).replace("EVERY", every).replace("SET", line), at)
    learner, x = names["Learner"](), torch.ones(8, 4).to(names["device"])
    for _ in range(ahead):
        learner.update(x)
    return pgk.diagnose(learner.update, x)


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("way", WRONG.values(), ids=WRONG)
def test_a_rate_set_behind_the_replay_is_told(tmp_path: Path, way: tuple[str, str, str], ahead: int) -> None:
    # GIVEN a step that sets a number of its optimizer behind its replay WHEN asked alone
    found = ask(tmp_path / "program.py", *way, ahead).failures
    # THEN it is told that the graph keeps the one of its capture
    assert [f.code for f in found] == ["learning-rate-frozen" if "lr" in way[2] else "scalar-frozen"], found


@pytest.mark.parametrize("way", RIGHT.values(), ids=RIGHT)
def test_a_rate_that_the_graph_reads_or_captures_again_is_none(tmp_path: Path, way: tuple[str, str, str]) -> None:
    # GIVEN the same with a tensor, the same number, or another capture behind it WHEN asked alone THEN
    assert not ask(tmp_path / "program.py", *way, 0).failures
