"""Buckets whose results lie in one buffer for all sizes: a call reads the rows of its batch, and no others."""

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
RUNNER = """
class Runner:
    def __init__(self, net):
        self.net, self.graphs = net, {}
        self.x, self.out = torch.zeros(8, 4, device=device), torch.zeros(8, 3, device=device)
    @torch.no_grad()
    def warm_up(self):
        for b in (2, 4, 8):
            self.net(self.x[:b])
            g = cuda.CUDAGraph()
            with cuda.graph(g):
                self.out[:b] = self.net(self.x[:b])
            self.graphs[b] = g
    def __call__(self, x):
        n = x.shape[0]
        b = next(size for size in (2, 4, 8) if size >= n)
        self.x[:n].copy_(x)
        self.graphs[b].replay()
        return self.out[:READ].clone()
def main():
    runner = Runner(nn.Linear(4, 3).to(device))
    runner.warm_up()
    return [runner(torch.full((n, 4), float(n), device=device)).sum() for n in (1, 2, 3, 4, 5, 3, 5)]
"""


@pytest.mark.parametrize(("read", "told"), [("n", []), ("b", ["size-frozen"])])
def test_rows_of_before_are_told_where_a_call_reads_them(read: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN buckets that a batch fills in part, and results of which a call reads its own rows, or all of the bucket's
    names = load(PRELUDE + RUNNER.replace("READ", read), tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["main"])
    # THEN the rows of a batch before are told where they are read
    assert sorted({f.code for f in found}) == told
