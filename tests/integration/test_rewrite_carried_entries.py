"""Numbers that pick an entry of a list of Python's: a tensor is no index of it, and the entry goes to the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

LOOP = """
class Loop:
    def __init__(self):
        torch.manual_seed(0)
        self.u, self.it, self.graph = torch.randn(32).to(device), 0, None
        self.rates = RATES
    def advance(self):
        kick = torch.full_like(self.u, 0.01).mul_(torch.rand(()).item())
        self.u.add_(self.rates[self.it] * (self.u.roll(1) - self.u) + kick)
        self.it += 1
        return self.u.abs().max()
    def run(self):
        if self.graph is None:
            keep = self.u.clone()
            self.advance()
            self.u.copy_(keep)
            self.it = 0
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.top = self.advance()
        self.graph.replay()
        return self.top.item()
def f():
    loop = Loop()
    return [loop.run() for _ in range(9)], loop.u.cpu()
args = ()
"""
RATES = ("[0.01 * k for k in range(90)]", "tuple(0.01 * k for k in range(90))")


@pytest.mark.parametrize("rates", RATES)
def test_the_entry_of_a_list_is_given_to_the_graph(rates: str, tmp_path: Path) -> None:
    # GIVEN a step that reads an entry of a list by a number that it counts
    names = run(LOOP.replace("RATES", rates), tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN lines that were tried fill a tensor with the entry, and index no list with a tensor
    words = [f.fix for f in found.failures if f.code == "scalar-frozen"]
    assert words
    assert all("it_in" not in each for each in words), words
    assert "_in.fill_(self.rates[self.it])" in str(found)
    assert "replays of one graph give eager's results and state bit for bit" in str(found)
