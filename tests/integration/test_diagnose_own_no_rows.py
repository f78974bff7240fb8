"""Results that begin with no rows of the batch: a mean over them, which has as many entries as a batch may have."""

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
BUCKETS = """
class Server:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.graphs = nn.Linear(8, 8).to(device).eval(), {}
    @torch.no_grad()
    def capture(self, n):
        x = torch.zeros(n, 8, device=device)
        self.net(x)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = self.net(x).relu()REDUCED
        self.graphs[n] = g, x, y
    def __call__(self, x):
        n = 4 if len(x) <= 4 else 8
        if n not in self.graphs:
            self.capture(n)
        g, static, y = self.graphs[n]
        static[:len(x)].copy_(x)
        g.replay()
        return y.clone()
def main():
    server = Server()
    return [server(torch.randn(n, 8).to(device)).sum().item() for n in (4, 8, 3, 6, 2, 4, 8, 3)]
"""


@pytest.mark.parametrize("reduced", [".mean(0)", ""])
def test_only_rows_are_cut(reduced: str, tmp_path: Path) -> None:
    # GIVEN a server with a graph for each of two sizes, that gives back a mean over all rows, or the rows
    names = load(PRELUDE + BUCKETS.replace("REDUCED", reduced), tmp_path / "program.py")
    # WHEN diagnosed
    found = [f for f in pgk.diagnose(names["main"]).failures if f.code == "size-frozen"]
    # THEN it is told, and rows alone are cut from the result
    assert found
    assert any("y[:len(x)]" in f.fix for f in found) == (not reduced), found
