"""Inputs that a method gives the name which the graph has read, in each call, before anybody has asked twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
SPEECH = """
import torch
import paramgraph_kit as pgk

class Speech:
    def __init__(self):
        self.features = torch.zeros(6, 8).to(pgk.device())
        self.tok = torch.zeros(2, 8).to(pgk.device())
        self.graph = None

    def start(self, features):
        self.load(features)

    def load(self, features):
        LINE

    def token(self):
        return torch.softmax(self.tok @ self.features.T, -1) @ self.features

    @torch.no_grad()
    def build(self):
        self.token()
        self.graph = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(self.graph):
            self.out = self.token()

    @torch.no_grad()
    def run(self, features, tok):
        self.start(features)
        if self.graph is None:
            self.build()
        self.tok.copy_(tok)
        self.graph.replay()
        return self.out.clone()

speech = Speech()
inputs = (torch.rand(6, 8).to(pgk.device()), torch.rand(2, 8).to(pgk.device()))
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("self.features = features", 1),
        ("self.features.copy_(features)", 0),
        ("if self.graph is None: self.features = features.clone()\n        else: self.features.copy_(features)", 0),
    ],
)
@pytest.mark.parametrize("asked", ["first", "later"])
def test_a_name_that_a_method_gives_each_input_is_told(line: str, told: int, asked: str, tmp_path: Path) -> None:
    # GIVEN a call that begins with methods which keep its input, by the name that the graph reads, or in its memory
    names = load(SPEECH.replace("LINE", line), tmp_path / "program.py")
    if asked == "later":
        names["speech"].run(*(each.clone() for each in names["inputs"]))
    # WHEN it is diagnosed, before its capture or behind it
    found = pgk.diagnose(names["speech"].run, *names["inputs"])
    # THEN the line is told, and only where it gives the name another tensor
    assert [f.frame.text for f in found.failures if f.frame] == [line] * told, found
    assert all("self.features.copy_(features)" in f.fix for f in found.failures)
