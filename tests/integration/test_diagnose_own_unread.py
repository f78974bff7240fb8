"""Numbers that a step hands to what its own graph captures: read there by somebody, or by nobody."""

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
PROGRAM = """class Runner:
    def __init__(self):
        self.net, self.graphs = nn.Linear(6, 3).to(device), {}
        self.x = torch.zeros(4, 6, device=device)
    def forward(self, n, at):
        return self.inner(n, at=at)
    def inner(self, n, *, at=0):
        return READS
    def capture(self, n, at):
        self.forward(n, at)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = self.forward(n, at)
        self.graphs[n] = graph, out
    def step(self, x, at):
        n = x.shape[0]
        if n not in self.graphs:
            CAPTURES
        graph, out = self.graphs[n]
        self.x[:n].copy_(x)
        graph.replay()
        return out.clone()
r = Runner()
FIRST
f, args = r.step, (torch.randn(4, 6, device=device), 3)
"""
INLINE = """self.forward(n, at)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                out = self.forward(n, at)
            self.graphs[n] = graph, out"""
BEGUN = ["pass", "r.step(torch.randn(4, 6, device=device), 0)"]
CAPTURES = ["self.capture(n, at)", INLINE]


@pytest.mark.parametrize("first", BEGUN)
@pytest.mark.parametrize("captures", CAPTURES)
@pytest.mark.parametrize(
    ("reads", "codes"), [("self.net(self.x[:n])", []), ("self.net(self.x[:n]) * at", ["scalar-frozen"])]
)
def test_a_number_that_a_capture_hands_on_is_told_only_where_somebody_reads_it(
    reads: str, codes: list[str], captures: str, first: str, tmp_path: Path
) -> None:
    # GIVEN a step that captures when a size comes first, and hands a number on that is another one at each call
    text = PROGRAM.replace("READS", reads).replace("CAPTURES", captures).replace("FIRST", first)
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert sorted({f.code for f in found}) == codes, str(found)
