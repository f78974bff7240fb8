"""Runners that give out places by themselves: the first is for padding, or it is a row's like any other."""

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
PROGRAM = """
class Runner:
    def __init__(self, most=4):
        torch.manual_seed(0)
        self.table, self.cache = torch.randn(50, 8, device=device), torch.zeros(32, 8, device=device)
        self.free = FREE
        self.ids, self.slots = (torch.zeros(most, dtype=torch.long, device=device) for _ in range(2))
        self.run()
        self.cache.zero_()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.run()
    def run(self):
        x = self.table[self.ids]
        self.cache[self.slots] = x
        return x + 1
    def step(self, ids):
        n = len(ids)
        slots = torch.tensor([self.free.pop(0) for _ in range(n)])
        self.ids[:n].copy_(ids)
        self.slots[:n].copy_(slots)
        self.slots[n:].zero_()
        self.graph.replay()
        return self.out[:n].clone()
runner = Runner()
"""


@pytest.mark.parametrize(
    ("free", "told"),
    [
        ("list(range(1, 32))", []),
        ("[*range(32)]", ["self.slots[:n].copy_(slots)"]),
        pytest.param("torch.arange(1, 32).tolist()", [], marks=pytest.mark.sweep),
        pytest.param("[n for n in range(1, 32)]", [], marks=pytest.mark.sweep),
        pytest.param("list(range(0, 32))", ["self.slots[:n].copy_(slots)"], marks=pytest.mark.sweep),
    ],
)
def test_a_first_place_that_nobody_is_given_is_for_padding(free: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN a runner that takes a free place for each row, and sends the rows behind to the first, which is given out
    # or not; each call writes at the next places
    runner = load(PRELUDE + PROGRAM.replace("FREE", free), tmp_path / "program.py")["runner"]
    # WHEN diagnosed
    with quiet():
        found = pgk.diagnose(runner.step, torch.tensor([5, 9, 11]))
    # THEN the numbers of tokens are no places, and the slots are told where the first is a row's
    assert [f.frame.text for f in found.failures if f.frame] == told
