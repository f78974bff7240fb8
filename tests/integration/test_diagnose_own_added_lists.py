"""What adds a list of a graph's results to another one keeps each of them: a list has no ``clone()``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
EPOCHS = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Stepper:
    def __init__(self):
        self.x = torch.zeros(4, device=device)
        self.g = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(self.g):
            self.y = self.x * 2
    def step(self, x):
        self.x.copy_(x)
        self.g.replay()
        return self.y
def main():
    s, kept = Stepper(), []
    for epoch in range(2):
        cost = []
        for i in range(3):
            cost.append(RESULT)
        ADDS
    return torch.stack(kept)
"""
STEP = "s.step(torch.full((4,), float(i), device=device))"


def _asked(folder: Path, adds: str, result: str = STEP) -> pgk.Diagnosis:
    return pgk.diagnose(load(EPOCHS.replace("ADDS", adds).replace("RESULT", result), folder / "epochs.py")["main"])


@pytest.mark.parametrize("adds", ["kept += COST", "kept.extend(COST)"])
def test_each_entry_has_a_copy(tmp_path: Path, adds: str) -> None:
    """GIVEN a loop that adds the list of an epoch's results to that of all
    WHEN its program is diagnosed
    THEN the words copy each entry, and with those of either line nothing is wrong.
    """
    line = adds.replace("COST", "[y.clone() for y in cost]")
    assert line in str(_asked(tmp_path, adds.replace("COST", "cost")))
    assert not _asked(tmp_path, adds.replace("COST", "cost"), f"{STEP}.clone()").failures
