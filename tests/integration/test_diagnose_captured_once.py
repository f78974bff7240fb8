"""A program that captures into a graph from around it is run once, though the doctor calls it several times."""

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
NOTES = """import torch, paramgraph_kit as pgk
device = pgk.device()
x = torch.zeros(4, device=device)
g = pgk.cuda.CUDAGraph()
def main():
    with pgk.cuda.graph(g):
        y = x * 2
    out = []
    for i in range(3):
        x.fill_(float(i))
        g.replay()
        out.append(KEPT)
    return out
def twice():
    for _ in range(2):
        with pgk.cuda.graph(g):
            y = x * 2
        g.replay()
    return y.clone()
def step():
    with pgk.cuda.graph(g):
        y = x * 2
    g.replay()
    return y.clone()
def train():
    return [step() for _ in range(3)]
"""


def _codes(folder: Path, name: str, kept: str = "y.clone()") -> tuple[list[str], str]:
    found = pgk.diagnose(load(NOTES.replace("KEPT", kept), folder / "notes.py")[name])
    return [each.code for each in found.failures], " ".join(found.notes)


def test_a_graph_of_the_module_is_captured_once(tmp_path: Path) -> None:
    """GIVEN a program as in PyTorch's notes, whose graph is made by the module around it
    WHEN it is diagnosed
    THEN nothing is wrong, and that it is for one run is a note.
    """
    codes, notes = _codes(tmp_path, "main")
    assert codes == []
    assert "called again it would raise" in notes


def test_what_its_replays_do_not_see_is_told(tmp_path: Path) -> None:
    """GIVEN the same, which keeps the graph's own memory
    WHEN it is diagnosed
    THEN that alone is told.
    """
    assert _codes(tmp_path, "main", "y")[0] == ["output-alias"]


@pytest.mark.parametrize("name", ["twice", "step"])
def test_a_second_capture_of_its_own_is_told(tmp_path: Path, name: str) -> None:
    """GIVEN a program that captures into that graph twice, or one that its file calls in a loop
    WHEN it is diagnosed
    THEN the second capture is told.
    """
    assert _codes(tmp_path, name)[0] == ["graph-has-capture"]
