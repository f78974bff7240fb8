"""Shorter inputs of graphs that add up what they compute and give nothing back: what a longer one left is counted."""

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
PROGRAM = """
import torch
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()

class Rows:
    def __init__(self, x):
        self.x = x
    def __iter__(self):
        for at in range(0, len(self.x), 8):
            yield self.x[at : at + 8]

class Meter:
    @torch.no_grad()
    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Linear(5, 3).to(device)
        self.x = torch.zeros(8, 5, device=device)
        self.count = torch.zeros(8, 1, device=device)
        self.total = STATE
        kept = self.total.clone()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self.work()
        cuda.current_stream().wait_stream(side)
        self.total.copy_(kept)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.work()
    def work(self):
        y = torch.tanh(self.net(self.x))
        ADDS
    def update(self, x):
        n = len(x)
        self.x[:n].copy_(x)
        FILLS
        self.graph.replay()

update, args = Meter().update, (torch.rand(5, 5, device=device),)
def main():
    meter = Meter()
    for x in Rows(torch.rand(21, 5)):
        meter.update(x.to(device))
    return meter.total.cpu()
"""
COUNTED = "self.count.zero_(); self.count[:n].fill_(1)"
ZERO = "torch.zeros((), device=device)"


BOTH = ("update", "main")


@pytest.mark.parametrize(
    ("state", "adds", "fills", "is_wrong", "asked"),
    [
        (ZERO, "self.total += y.sum()", "pass", True, BOTH),
        ("torch.zeros(3, device=device)", "self.total.add_(y.mean(0))", "pass", True, BOTH),
        ("torch.zeros(3, 3, device=device)", "self.total.lerp_(y.mT @ y, 0.1)", "pass", True, BOTH),
        (ZERO, "self.total += (y * self.count).sum()", COUNTED, False, BOTH),
        (ZERO, "self.total += 1", "pass", False, BOTH[:1]),
        ("torch.zeros(8, 3, device=device)", "self.total.lerp_(y, 0.1)", "pass", False, BOTH[:1]),
    ],
)
def test_sums_over_rows_of_before_are_told(
    state: str, adds: str, fills: str, is_wrong: bool, asked: tuple[str, ...], tmp_path: Path
) -> None:
    # GIVEN a meter whose graph adds up what it computes of eight rows: of all, of those that count, or row by row
    text = PROGRAM.replace("STATE", state).replace("ADDS", adds).replace("FILLS", fills)
    names = load(text, tmp_path / "program.py")
    # WHEN it is diagnosed, alone with five rows or as a program whose last input has so many
    given = {"update": names["args"], "main": ()}
    found = {each: [f.code for f in pgk.diagnose(names[each], *given[each]).failures] for each in asked}
    # THEN rows that a longer input has left are told where they are counted
    assert found == dict.fromkeys(asked, ["size-frozen"] * is_wrong)
