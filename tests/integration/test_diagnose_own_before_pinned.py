"""Pinned memory that a graph of before copies, read or filled by the host while its replay may be under way."""

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
RUNNER = """
class Runner:
    def __init__(self):
        self.x = torch.zeros(4, device=device)
        self.pin, self.host = torch.zeros(4).pin_memory(), torch.zeros(4).pin_memory()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.x.copy_(self.pin, non_blocking=True)
            self.y = self.x * 2
            self.host.copy_(self.y, non_blocking=True)
    def step(self, x):
        self.pin.copy_(x)
        self.graph.replay()
        REST
runner, x = Runner(), torch.rand(4)
def main():
    for _ in range(3):
        runner.step(x)
"""
FILLS = "self.pin.copy_(x)"
WRONG = {
    "return self.host.clone()": [FILLS, "return self.host.clone()"],
    "return self.y.clone()": [FILLS],
    "return self.host.tolist()": [FILLS, "return self.host.tolist()"],
}
RIGHT = ("cuda.synchronize(); return self.host.clone()", "return self.y.sum().item()")


def _told(rest: str, tmp_path: Path) -> list[str]:
    names = load(PRELUDE + RUNNER.replace("REST", rest), tmp_path / "program.py")
    found = pgk.diagnose(names["runner"].step, names["x"]).failures
    return [f.frame.text for f in found if f.frame is not None and f.code == "work-elsewhere"]


@pytest.mark.parametrize("rest", [pytest.param(n, marks=pytest.mark.sweep if i else ()) for i, n in enumerate(WRONG)])
def test_what_nobody_waits_for_is_told(rest: str, tmp_path: Path) -> None:
    # GIVEN a step whose graph was captured ahead of the question, and copies from and to pinned memory
    # WHEN it reads, or fills, that memory and waits for nothing
    # THEN the lines are told
    assert _told(rest, tmp_path) == WRONG[rest]


@pytest.mark.parametrize("rest", [RIGHT[0], pytest.param(RIGHT[1], marks=pytest.mark.sweep)])
def test_what_is_waited_for_is_none(rest: str, tmp_path: Path) -> None:
    # GIVEN one that waits
    # WHEN it is diagnosed THEN nothing is told
    assert _told(rest, tmp_path) == []
