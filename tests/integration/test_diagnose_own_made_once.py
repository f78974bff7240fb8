"""Tensors that a program makes in a first call and writes in all others, as the words for exchanged ones say."""

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
PROGRAM = """
class System:
    def __init__(self):
        self.pos, self.force = torch.rand(4, 3, device=device), torch.zeros(4, 3, device=device)
        self.rebuild()
    def rebuild(self):
        near = (self.pos[:, None] - self.pos).norm(dim=-1) < 0.5
        MAKES
    def advance(self):
        self.force.copy_(self.near.float() @ self.pos)
        self.pos.add_(self.force, alpha=0.01)
class Simulation:
    def __init__(self, system):
        self.system = system
        self.system.advance()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.system.advance()
    def run(self, steps):
        for i in range(steps):
            if i % 2:
                self.system.rebuild()
            self.graph.replay()
        return self.system.pos.clone()
def main():
    return Simulation(System()).run(6)
def eager():
    s = System()
    for i in range(6):
        if i % 2:
            s.rebuild()
        s.advance()
    return s.pos
"""
ONCE = """if hasattr(self, 'near'): self.near.copy_(near)
        else: self.near = near"""
NOT_YET = """if not hasattr(self, 'near'):
            self.near = near
        self.near.copy_(near)"""


@pytest.mark.parametrize("makes", [ONCE, NOT_YET])
def test_a_tensor_that_is_made_where_it_is_not_there_is_nothing(makes: str, tmp_path: Path) -> None:
    # GIVEN a system whose neighbours are made anew in each call WHEN THEN that line is told
    names = load(PRELUDE + PROGRAM.replace("MAKES", "self.near = near"), tmp_path / "wrong.py")
    assert "self.near = near" in [f.frame.text for f in pgk.diagnose(names["main"]).failures if f.frame]
    # GIVEN the same as the words say, made once and written then WHEN THEN nothing is told
    names = load(PRELUDE + PROGRAM.replace("MAKES", makes), tmp_path / "right.py")
    found = pgk.diagnose(names["main"])
    assert not found.failures, str(found)
