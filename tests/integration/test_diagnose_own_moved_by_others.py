"""Methods that no call has run, and that give what a graph reads another tensor, or number: a note says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
WARP = """
class Warp:
    def __init__(self):
        torch.manual_seed(0)
        self.matrix, self.gain, self.graph = torch.eye(3, device=device), 2.0, None
        self.points = torch.zeros(5, 3, device=device)
        self.prepare()
    def prepare(self):
        self.bias = torch.zeros(3, device=device)
    def METHOD
    def body(self):
        return self.points @ self.matrix.T * self.gain + self.bias
    def __call__(self, points):
        if self.graph is None:
            self.body()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.body()
        self.points.copy_(points)
        self.graph.replay()
        return self.out.clone()
warp, points = Warp(), torch.ones(5, 3, device=device)
"""
MOVES = {
    "follow(self, m): self.matrix = torch.as_tensor(m).to(device)": "self.matrix.copy_(...)",
    "louder(self, gain): self.gain = gain": "gives the value of self.gain there",
    "louder(self): self.gain *= 2": "gives the value of self.gain there",
}
KEEPS = [
    "follow(self, m): self.matrix.copy_(torch.as_tensor(m))",
    "follow(self, m): self.matrix, self.graph = torch.as_tensor(m).to(device), None",  # a new capture comes
    "blend(self, m): self.matrix *= m",
]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("method", MOVES)
def test_a_method_that_moves_what_a_graph_reads_is_named(method: str, before: bool, tmp_path: Path) -> None:
    # GIVEN an object whose graph reads what a method gives another value, which no call runs
    names = run(WARP.replace("METHOD", method), tmp_path)
    if before:
        names["warp"](names["points"])
    # WHEN a call is diagnosed
    found = pgk.diagnose(names["warp"], names["points"])
    # THEN it has no problem, and the method is named with what to write there
    assert not found.failures
    (note,) = [note for note in found.notes if "no call ran" in note]
    assert method.partition("(")[0] in note
    assert MOVES[method] in note


@pytest.mark.parametrize("method", KEEPS)
def test_a_method_that_writes_in_place_or_asks_for_a_new_capture_is_not(method: str, tmp_path: Path) -> None:
    # GIVEN the same where the graph sees it, or another one is captured WHEN diagnosed
    names = run(WARP.replace("METHOD", method), tmp_path)
    found = pgk.diagnose(names["warp"], names["points"])
    # THEN nothing is said
    assert not found.failures
    assert not [note for note in found.notes if "no call ran" in note]
