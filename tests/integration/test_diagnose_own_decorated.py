"""Objects whose ``__call__`` runs without gradients, by torch's decorator, and whose graph is made where they are."""

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
GRAPHED = """
class Graphed:
    def __init__(self):
        self.w, self.scale = torch.eye(4, device=device), 1.0
        self.x, self.bias = torch.zeros(3, 4, device=device), torch.zeros(4, device=device)
        self.x @ self.w
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x @ self.w * self.scale + self.bias
    DECORATED
    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        LINE
        return self.y.clone()
model = Graphed()
"""
LINES = {
    "self.scale *= 0.9": ["scalar-frozen"],
    "self.bias = self.bias + 0.1": ["stale-input"],
    "self.bias.add_(0.1)": [],
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("decorated", ["@torch.no_grad()", "@torch.inference_mode()"])
def test_what_such_a_call_moves_behind_its_replay_is_told(decorated: str, line: str, tmp_path: Path) -> None:
    # GIVEN an object with a graph that was captured when it was made, and a call that moves what the graph reads
    text = GRAPHED.replace("DECORATED", decorated).replace("LINE", line)
    model = load(PRELUDE + text, tmp_path / "program.py")["model"]
    # WHEN diagnosed THEN it is told as without the decorator
    found = pgk.diagnose(model, torch.ones(3, 4, device=pgk.device())).failures
    assert [(f.code, f.frame.text if f.frame else "") for f in found] == [(code, line) for code in LINES[line]]
