"""Rows that a shorter input leaves write to places of caches: one more place in each cache is theirs."""

from __future__ import annotations

from pathlib import Path

import torch

import paramgraph_kit as pgk
from tests.programs.running import load

PROGRAM = """import torch
import paramgraph_kit as pgk
device = pgk.device()
class Runner:
    def __init__(self):
        self.keys, self.values = torch.zeros(8, 4, device=device), torch.zeros(8, 4, device=device)
        self.x, self.slots = torch.zeros(4, 4, device=device), torch.zeros(4, dtype=torch.long, device=device)
        self.run()
        self.graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(self.graph):
            self.out = self.run()
    def run(self):
        self.keys.index_copy_(0, self.slots, self.x.sin())
        self.values.index_copy_(0, self.slots, self.x.cos())
        return (self.x @ self.keys.T).softmax(-1) @ self.values
    def __call__(self, x, slots):
        n = x.size(0)
        self.x[:n].copy_(x)
        self.slots[:n].copy_(slots)
        self.graph.replay()
        return self.out[:n].clone()
f = Runner()
args = torch.randn(2, 4, device=device), torch.tensor([3, 5], device=device)
"""


def test_each_cache_that_rows_to_spare_write_gets_one_place_more(tmp_path: Path) -> None:
    # GIVEN a runner of four rows that writes keys and values at the places of today's two
    torch.manual_seed(0)
    names = load(PROGRAM, tmp_path / "program.py")

    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"]).failures

    # THEN the words make both caches larger, as the other one has no such place
    (fix,) = [f.fix for f in found if f.frame and f.frame.text == "self.slots[:n].copy_(slots)"]
    assert "with self.keys and self.values made one larger" in fix
