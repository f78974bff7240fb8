"""A method that is called ``update`` sets what its lines set: no number of its object is set by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
WORLD = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Table:
    def __init__(self, reach):
        self.reach, self.seen = reach, torch.zeros(5, device=device)
    def update(self, x):
        self.seen.copy_(x)
        MORE
class World:
    def __init__(self):
        self.x, self.table, self.steps = torch.arange(5.0, device=device), Table(1.5), 0
    def step(self, drive):
        self.x.add_(0.1 * drive)
        self.table.update(self.x)
        near = (self.x - self.table.seen.mean()).abs() < self.table.reach
        self.steps += 1
        return (near * self.x).sum()
s = World()
def wider():
    OUTSIDE
"""


@pytest.mark.parametrize("outside", ["pass", "s.table.reach = 2.0"])
def test_a_number_is_only_told_to_be_set_where_a_line_sets_it(outside: str, tmp_path: Path) -> None:
    # GIVEN a step that updates an object of its own and reads a number of it, which a function may set
    text = WORLD.replace("MORE", "pass").replace("OUTSIDE", outside)
    # WHEN it is rewritten
    found = pgk.diagnose(
        load(text, tmp_path / "program.py")["s"].step, torch.linspace(-1, 2, 5, device=pgk.device()), fix=True
    )
    # THEN that number is told to be set outside of the step only where it is
    assert ("`self.table.reach` is set outside of the step" in str(found)) is (outside != "pass"), str(found)
