"""A time step that the host has and gives to what is captured: a tensor does where it is only computed with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

SOLVER = """
class Solver:
    def __init__(self):
        self.u, self.out, self.graph = torch.ones(6, device=device), torch.zeros(6, device=device), None
        self.shift, self.net = 1, torch.nn.Linear(6, 6).to(device).requires_grad_(False)
    def stage(self, u, k, h):
        return self.slope(u + h * k)
    def shifted(self, u, h):
        return u.roll(int(8 * h))
    def slope(self, u):
        return -u * u.roll(1)
    def advance_by(self, dt):
        {body}
    def advance(self, n):
        dt = 0.5 / (1 + n)
        if self.graph is None:
            kept = self.u.clone()
            self.advance_by(dt)
            self.u.copy_(kept)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.advance_by(dt)
        self.graph.replay()
        return self.u.sum().item()
def main():
    solver = Solver()
    return [solver.advance(n) for n in range(6)]
"""
FILLED = {
    "copied in": "self.u.copy_(self.u + dt * self.slope(self.u))",
    "in two stages, by a method": "self.u.add_(self.slope(self.u + 0.5 * dt * self.slope(self.u)), alpha=0.1)",
    "beside names of its own": "u = self.u\n        v = self.net(u)\n        self.u.copy_(self.net(u + dt * v))",
    "beside what a method computes": "u, k = self.u, self.slope(self.u)\n        self.u.copy_(self.net(u - k * dt))",
    "handed on": "u, k = self.u, self.slope(self.u)\n        self.u.copy_(u + 0.1 * self.stage(u, k, h=0.5 * dt))",
    "kept by a name": "half = self.u - dt * self.u.roll(1)\n        self.u.copy_(self.slope(half))",
}
FOR_EACH = {
    "a size": "self.u.copy_(self.u.roll(int(8 * dt)))",
    "numbers of its own": "w = 2.0\n        self.u.copy_(self.u.roll(int(w + dt * w)))",
    "a module's own": "self.u.copy_(torch.nn.functional.leaky_relu(self.net(self.u), 0.1 + dt))",
    "a size, handed on": "self.u.copy_(self.shifted(self.u, dt))",
    "a branch": "self.u.copy_(self.u * 0.5 if dt < 0.2 else self.u + dt * self.u)",
}


def ask(at: Path, body: str) -> str:
    (found,) = pgk.diagnose(load(PRELUDE + SOLVER.format(body=body), at)["main"]).failures
    assert found.frame is not None
    assert found.frame.text == "dt = 0.5 / (1 + n)"
    return found.fix


@pytest.mark.parametrize("body", FILLED.values(), ids=FILLED)
def test_a_time_step_goes_into_a_tensor(tmp_path: Path, body: str) -> None:
    # GIVEN a time step that what is captured computes with, beside tensors WHEN diagnosed
    fix = ask(tmp_path / "program.py", body)
    # THEN the words fill a tensor ahead of each replay
    assert ".fill_(dt)" in fix
    assert "a graph for each value" not in fix


@pytest.mark.parametrize("body", FOR_EACH.values(), ids=FOR_EACH)
def test_what_takes_a_number_alone_has_a_graph_for_each(tmp_path: Path, body: str) -> None:
    # GIVEN a time step of which a size or a branch is made WHEN diagnosed THEN no tensor is put in its place
    assert ".fill_(dt)" not in ask(tmp_path / "program.py", body)
