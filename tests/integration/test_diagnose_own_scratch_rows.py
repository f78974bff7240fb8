"""Rows that no input fills: a size of the object's own cuts as much in each call, one of the input's does not."""

from __future__ import annotations

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
class Diffusion:
    def __init__(self, nodes=4):
        torch.manual_seed(0)
        self.nodes = nodes
        self.h = torch.zeros(nodes + 1, 3, device=device)
        self.src = torch.tensor([0, 1, 4, 4], device=device)
        self.dst = torch.tensor([1, 2, 4, 4], device=device)
        self.body()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.body()
    def body(self):
        new = 0.5 * self.h + 0.1 * torch.zeros_like(self.h).index_add_(0, self.dst, torch.tanh(self.h[self.src]))
        self.h.copy_(new)
        return new.sum()
    def advance(self, state):
        n = len(state)
        self.h[:ROWS].copy_(state)
        self.graph.replay()
        return self.y.clone()
advance = Diffusion().advance
args = (torch.randn(4, 3, device=device),)
"""


def told(rows: str, tmp_path: Path, more: str = "") -> list[str]:
    """What is told of such a program."""
    names = load(PRELUDE + PROGRAM.replace("ROWS", rows) + more, tmp_path / "program.py")
    with quiet():
        return [f.code for f in pgk.diagnose(names["advance"], *names["args"]).failures]


def test_rows_behind_a_size_of_the_objects_own_are_no_longer_inputs(tmp_path: Path) -> None:
    # GIVEN a state whose last row is a place for edges that are not there
    # WHEN it is diagnosed
    found = told("self.nodes", tmp_path)
    # THEN no input was ever longer
    assert not found


@pytest.mark.parametrize(("rows", "more"), [("n", ""), ("self.nodes", "def resize(it, n): it.nodes = n")])
def test_rows_behind_a_size_that_changes_are_told(rows: str, more: str, tmp_path: Path) -> None:
    # GIVEN the same with a size of the input's, or one that other lines set
    # WHEN
    found = told(rows, tmp_path, more)
    # THEN
    assert found == ["size-frozen"]
