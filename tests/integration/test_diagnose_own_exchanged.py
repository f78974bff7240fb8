"""Tensors that a line behind a replay hands on among themselves: what is told, followed, gives eager's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FIELD = """
class Field:
    def __init__(self):
        self.u = torch.linspace(0, 1, 8, device=device)
        self.v, self.w, self.last = self.u * 0.5, torch.zeros_like(self.u), None
        self.graph = cuda.CUDAGraph()
    def work(self):
        STEP
    def begin(self):
        kept = [t.clone() for t in (self.u, self.v, self.w)]
        self.work()
        with cuda.graph(self.graph):
            self.work()
        for t, k in zip((self.u, self.v, self.w), kept):
            t.copy_(k)
    def advance(self, graphed):
        self.graph.replay() if graphed else self.work()
        EXCHANGE
        return self.u.sum()
def main(graphed=True):
    field = Field()
    if graphed:
        field.begin()
    sums = [field.advance(graphed).clone() for _ in range(5)]
    return torch.stack(sums), field.u.clone(), field.last
"""
TWO = "self.v.copy_(self.u.roll(1) * 0.5 + self.u)"
THREE = "self.w.copy_(self.v * 1.5 - self.u + 0.1 * self.v.roll(1))"
HERE = "self.u.mul_(0.9).add_(self.v.roll(1))"


@pytest.mark.parametrize(
    ("work", "exchange"),
    [
        (TWO, "self.u, self.v = self.v, self.u"),
        (THREE, "self.u, self.v, self.w = self.v, self.w, self.u"),
        (THREE, "self.w, self.u, self.v = self.u, self.v, self.w"),
        (HERE, "self.last, self.u = self.u, self.u * 0.5"),
        (THREE, "self.v, self.u = self.w.clone(), self.v"),
    ],
)
def test_what_is_handed_on_is_written_in_place_and_nothing_before_it_is_read(
    work: str, exchange: str, tmp_path: Path
) -> None:
    # GIVEN a program whose graph reads tensors that are handed on behind each replay
    text = FIELD.replace("STEP", work)
    main = run(text.replace("EXCHANGE", exchange), tmp_path)["main"]
    # WHEN it is diagnosed, and the line is written as it is told
    found = pgk.diagnose(main)
    (told,) = [f for f in found.failures if f.code == "stale-input"]
    line = told.fix.partition("\nafter   ")[2]
    (tmp_path / "mended").mkdir()
    mended = run(text.replace("EXCHANGE", line), tmp_path / "mended")["main"]
    # THEN its replays give what it gives without a graph, and nothing is told any more
    for ours, eager in zip(mended(), main(graphed=False), strict=True):
        assert ours is eager or torch.equal(ours, eager)
    assert not pgk.diagnose(mended).failures
