"""Batches that the host samples ahead of a step, and what it is given back of them: each line's words are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

REPLAY = """
import numpy as np
rng = np.random.default_rng(0)
class Buffer:
    def __init__(self):
        self.rows, self.p = rng.random((8, 3)).astype(np.float32), np.ones(8, np.float32)
    def sample(self, n):
        idx = rng.choice(8, n, p=self.p / self.p.sum())
        return idx, (1 / self.p[idx]).astype(np.float32)
    def update(self, idx, p):
        self.p[idx] = p
net = nn.Linear(3, 1).to(device)
class Agent:
    def __init__(self):
        self.buffer = Buffer()
    def learn(self):
        idx, w = self.buffer.sample(4)
        s = torch.from_numpy(self.buffer.rows[idx]).to(device)
        td = net(s).squeeze(1) * 2
        loss = td.pow(2).mean()
        self.buffer.update(idx, td.detach().abs().cpu().numpy() + 1e-5)
        return loss
agent = Agent()
f, args = agent.learn, ()
"""
ON_THE_DEVICE = """
rows = torch.ones(8, 3, device=device)
def f():
    idx = torch.randint(0, 8, (4,), device=device)
    return rows[idx].sum()
args = ()
"""


@pytest.mark.sweep
def test_rows_that_the_host_samples_are_written_behind_the_line_that_samples(tmp_path: Path) -> None:
    # GIVEN a prioritized replay buffer of numpy, which a step samples and gives new priorities WHEN diagnosed
    names = run(REPLAY, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"])
    told = {each.frame.text.split(" = ")[0]: each.fix for each in found.failures if each.frame is not None}
    # THEN the rows are written before each launch, by their own line, into a tensor of their size
    assert "once `self.s_in = torch.zeros((4, 3), dtype=torch.float32, device=device)`" in told["s"]
    assert (
        "`self.s_in.copy_(torch.from_numpy(self.buffer.rows[idx]).to(device))`, and here `s = self.s_in`" in told["s"]
    )
    # THEN the graph returns a tensor for the priorities, and no array nor what the host has drawn
    assert "return `td.detach().abs()`, of which" in told["self.p[idx]"]
    assert "with the `idx` that the host has" in told["self.p[idx]"]


@pytest.mark.sweep
def test_rows_that_the_device_samples_are_no_problem(tmp_path: Path) -> None:
    # GIVEN rows that a step samples on the device WHEN diagnosed
    names = run(ON_THE_DEVICE, tmp_path)
    # THEN there is no problem
    assert not pgk.diagnose(names["f"], *names["args"]).failures
