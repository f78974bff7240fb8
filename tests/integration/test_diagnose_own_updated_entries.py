"""Dictionaries of static tensors that get their results by ``update``: which line gives an entry other memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

ENGINE = """
class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.net, self.graph = nn.Linear(4, 4).to(device), None
        self.io = {{"x": torch.zeros(4, device=device), "bias": torch.zeros(4, device=device)}}
    @torch.no_grad()
    def infer(self, x, bias):
        io = self.io
        if self.graph is None:
            self.net(io["x"])
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                outs = {{"y": self.net(io["x"]) + io["bias"]}}
            io.update(outs)
        {feeds}
        self.graph.replay()
        return io["y"].clone()
def main():
    engine = Engine()
    return [engine.infer(torch.full((4,), float(n)).to(device), torch.ones(4).to(device) * n) for n in range(5)]
"""
CASES = {
    "an entry that is named": ('io["x"].copy_(x); io["bias"] = bias', ['io["x"].copy_(x); io["bias"] = bias']),
    "by an update": ('io["x"].copy_(x); io.update(bias=bias)', ['io["x"].copy_(x); io.update(bias=bias)']),
    "by a dictionary": ('io["x"].copy_(x); io.update({"bias": bias})', ['io["x"].copy_(x); io.update({"bias": bias})']),
    "nothing but copies": ('io["x"].copy_(x); io["bias"].copy_(bias)', []),
}


@pytest.mark.parametrize(("feeds", "lines"), CASES.values(), ids=CASES)
def test_the_line_that_gives_an_entry_is_told_alone(tmp_path: Path, feeds: str, lines: list[str]) -> None:
    # GIVEN static tensors in a dictionary, which gets the results by `io.update(outs)`, and its inputs in some way
    program = PRELUDE + ENGINE.format(feeds=feeds)
    # WHEN diagnosed
    found = pgk.diagnose(load(program, tmp_path / "program.py")["main"]).failures
    # THEN what gives an entry other memory is told, and not the line that adds the results
    assert [f.frame.text for f in found if f.frame] == lines
