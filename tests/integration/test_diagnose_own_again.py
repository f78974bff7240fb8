"""Functions that capture again where they are given another tensor: what their graph reads is always today's."""

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
LOOKUP = """
class Lookup:
    def __init__(self):
        self.features, self.graph, self.shape = None, None, None
        self.query = torch.zeros(2, 6, device=device)
    def capture(self):
        self.query @ self.features.T
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.scores = self.query @ self.features.T
    def lookup(self, query, features):
        if TEST:
            LINES
        if self.graph is None:
            self.capture()
        self.query.copy_(query)
        self.graph.replay()
        return self.scores.clone()
lookup = Lookup().lookup
args = torch.ones(2, 6, device=device), torch.ones(5, 6, device=device)
"""
ANOTHER = ("features is not self.features", "self.features is None or features.data_ptr() != self.features.data_ptr()")
OF_SHAPE = "self.shape != features.shape"


@pytest.mark.parametrize("asked", ["first", "later"])
@pytest.mark.parametrize("test", [*ANOTHER, OF_SHAPE])
@pytest.mark.parametrize(
    "lines",
    [
        "self.features, self.graph, self.shape = features, None, features.shape",
        "self.features = features\n            self.graph, self.shape = None, features.shape",
    ],
)
def test_what_a_function_captures_again_for_is_told_only_where_it_does_not(
    lines: str, test: str, asked: str, tmp_path: Path
) -> None:
    # GIVEN a function whose graph reads an argument itself, and that captures again for another tensor, or shape
    names = load(PRELUDE + LOOKUP.replace("TEST", test).replace("LINES", lines), tmp_path / "program.py")
    if asked == "later":
        names["lookup"](*(each.clone() for each in names["args"]))
    # WHEN diagnosed
    found = pgk.diagnose(names["lookup"], *names["args"]).failures
    # THEN what has no capture of its own is told, and nothing else
    assert {f.code for f in found} == ({"stale-input"} if test == OF_SHAPE else set())
