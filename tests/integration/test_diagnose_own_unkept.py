"""Weights that nobody keeps: a program that captures by itself is told of them, and is left to free them as ever."""

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
PASSED = """
class Runner:
    def __init__(self, model):
        KEEPS
        self.x = torch.zeros(4, 8, device=device)
        model(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = model(self.x)
    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
@torch.no_grad()
def main():
    runner = Runner(nn.Linear(8, 8).to(device))
    return [runner(torch.full((4, 8), float(i)).to(device)).cpu() for i in range(4)]
"""
HELPED = """
def make():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    x = torch.zeros(4, 8, device=device)
    model(x)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        y = model(x)
    return graph, x, y, KEEPS
@torch.no_grad()
def main():
    graph, x, y, kept = make()
    found = []
    for i in range(4):
        x.fill_(float(i))
        graph.replay()
        found.append(y.clone())
    return [each.cpu() for each in found]
"""


def codes(program: str, keeps: str, tmp_path: Path) -> set[str]:
    """What is told of a program, asked as a whole."""
    names = load(PRELUDE + program.replace("KEEPS", keeps), tmp_path / "program.py")
    return {f.code for f in pgk.diagnose(names["main"]).failures}


def test_a_model_that_is_passed_to_who_captures_and_does_not_keep_it_is_told(tmp_path: Path) -> None:
    # GIVEN a constructor that captures a model, which nobody has behind it WHEN the program is asked THEN it is told
    assert codes(PASSED, "pass", tmp_path) == {"freed-input"}
    # GIVEN one that keeps it WHEN THEN nothing
    assert codes(PASSED, "self.model = model", tmp_path) == set()


def test_a_model_of_a_helper_that_captures_is_told(tmp_path: Path) -> None:
    # GIVEN a helper whose model goes with it WHEN the program is asked THEN it is told
    assert codes(HELPED, "None", tmp_path) == {"freed-input"}
    # GIVEN one that hands it on WHEN THEN nothing
    assert codes(HELPED, "model", tmp_path) == set()
