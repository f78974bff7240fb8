"""What lines behind a launch keep is told to be written in place only where a graph reads it, and of one size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
WORLD = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Table:
    def __init__(self):
        self.near, self.seen = None, None
    def old(self, x):
        if self.seen is None:
            return True
        return (x - self.seen).abs().max() > 0.15
    def update(self, x, width):
        if self.old(x):
            d = x[:, None] - x[None]
            self.near = ((d.abs() < width).triu(1)).nonzero().t()
            self.seen = x.clone()
        return self.near
class World:
    def __init__(self):
        self.x = torch.arange(5.0, device=device)
        self.table, self.pull = Table(), torch.zeros_like(self.x)
    def pulls(self):
        a, b = self.table.update(self.x, 1.4)
        gap = self.x[a] - self.x[b]
        return torch.zeros_like(self.x).index_add_(0, a, gap).index_add_(0, b, -gap)
    def step(self, drive):
        AHEAD
        self.x.add_(0.1 * (self.pull + drive))
        self.pull.copy_(self.pulls())
        return self.x
w = World()
w.pull.copy_(w.pulls())
def shown():
    return w.table.near.shape, w.table.seen.sum()
"""


def _said(ahead: str, path: Path) -> str:
    names = load(WORLD.replace("AHEAD", ahead), path)
    found = pgk.diagnose(names["w"].step, torch.linspace(-1, 2, 5, device=pgk.device()))
    (fix,) = (f.fix for f in found if f.code == "data-dependent-branch")
    assert "end what is captured before line" in fix, fix
    return fix


def test_what_is_read_behind_the_launch_alone_is_kept_as_it_was(tmp_path: Path) -> None:
    # GIVEN pairs and a place that are kept behind a branch of the device's, and read there, and beside the step
    # WHEN its step is diagnosed
    fix = _said("pass", tmp_path / "program.py")
    # THEN nothing is said of a copy, for which there is no tensor at first, or one with as many rows
    assert ".copy_" not in fix, fix


def test_what_a_graph_reads_is_written_in_place_where_there_is_a_tensor(tmp_path: Path) -> None:
    # GIVEN the same with a place that the step reads ahead of it WHEN it is diagnosed
    fix = _said("self.x.sub_(0.01 * (self.x - self.table.seen))", tmp_path / "program.py")
    # THEN it is written in place, where a first call has made one
    assert "`self.seen.copy_(x.clone())` for `self.seen = x.clone()` once a first call has made one" in fix, fix
    assert "self.near" not in fix, fix


def test_what_a_graph_reads_of_another_size_is_written_by_no_copy(tmp_path: Path) -> None:
    # GIVEN the same with pairs that the step reads ahead of it WHEN it is diagnosed
    fix = _said("self.x.sub_(0.01 * self.x[self.table.near[0]].sum())", tmp_path / "program.py")
    # THEN no copy is told, which would need as many rows, but what there is to do
    assert ".copy_" not in fix, fix
    assert "`self.near` is as large as the device finds" in fix, fix
