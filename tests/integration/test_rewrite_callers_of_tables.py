"""What a capture gives beside its graph in a table: a graph for each key keeps results of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

SERVICE = """
class Service:
    def __init__(self):
        self.w, self.gain, self.graphs, self.peak = torch.randn(8, 8, device=device), 3.0, {}, 0.0
    def compute(self, x):
        y = torch.tanh(x * self.w.sum(0)).mean(0)
        LAST
    def graph_of(self, n):
        if n not in self.graphs:
            buf = torch.zeros(n, 8, device=device)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                CAPTURE
            KEEP
        return self.graphs[n]
    def serve(self, x, gain):
        self.gain = gain
        graph, buf, out = self.graph_of(len(x))
        buf.copy_(x)
        graph.replay()
        return out
service = Service()
f, args = service.serve, (torch.ones(2, 8, device=device), 2.0)
"""
READ = "return [max(self.peak, each) for each in y.tolist()]"
PEAK = "self.peak = max(self.peak, y.max().item()); return y + 1"
OUT = "out = self.compute(buf)"
STAYS = "stays as it is, with all of that in `out` beside its graph; behind each replay of that graph "
TABLE = "self.graphs[n] = graph, buf, out"
KEPT = {
    "the table": (
        READ,
        OUT,
        TABLE,
        f"{STAYS}`after_compute` is given `out`, and `out` is",
    ),
    "more": (PEAK, OUT, TABLE, f"{STAYS}`out, y = out`"),
}


def _told(name: str, tmp_path: Path) -> str:
    last, capture, keep, _ = KEPT[name]
    text = SERVICE.replace("LAST", last.replace("; ", "\n        ")).replace("CAPTURE", capture).replace("KEEP", keep)
    names = run(text, tmp_path)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    return next((line for line in fix.verified if "whoever calls it" in line), str(fix.verified))


@pytest.mark.parametrize("name", ["more", pytest.param("the table", marks=pytest.mark.sweep)])
def test_results_of_a_table_of_graphs_stay_beside_their_graph(name: str, tmp_path: Path) -> None:
    # GIVEN a graph for each number of rows WHEN its function returns what goes behind a launch, or more with it
    told = _told(name, tmp_path)
    # THEN no one attribute keeps that of all graphs
    assert KEPT[name][3] in told
    assert "self.y_out" not in told
