"""Tensors of a list that a counter of the step picks: the words say which tensor the step is to read instead."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Phases:
    def __init__(self):
        self.tables, self.k = [torch.full((4,), float(i), device=device) for i in range(3)], 0
        self.s = torch.zeros(4, device=device)
    def half(self, x, table): return (x * table).relu() + table
"""
TAIL = "\nf, inputs = Phases().step, (torch.ones(4, device=device),)\n"
GIVEN = """    def step(self, x):
        self.s.add_(self.half(x, self.tables[self.k]))
        self.k = (self.k + 1) % 3
        return self.s * 2
"""
MOVED = """    def step(self, x):
        self.k += 1
        table = self.tables[self.k % 3]
        self.s.add_(x * table)
        return self.s * 2
"""
WRITTEN = """    def step(self, x):
        self.k = (self.k + 1) % 3
        return self.tables[self.k].mul_(0.5).add_(x) * 2
"""


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (GIVEN, "before each launch `tables_in.copy_(self.tables[self.k])`, and in the step `tables_in` for"),
        (MOVED, "copy_(self.tables[self.k % 3])`, with line 9 (`self.k += 1`) done before that, and in the step"),
    ],
)
def test_what_a_counter_picks_is_copied_before_each_launch(text: str, written: str, tmp_path: Path) -> None:
    # GIVEN a step that reads a tensor of a list at a place that it counts on, itself or in a helper
    names = load(HEAD + text + TAIL, tmp_path / "program.py")
    # WHEN it is diagnosed
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    # THEN no words write to the entries of the list, but to a tensor that is given the one that is picked
    (stale,) = (f for f in diagnosis if f.code == "stale-input")
    assert written in stale.fix, str(diagnosis)


def test_what_the_step_writes_there_is_not_copied(tmp_path: Path) -> None:
    # GIVEN a step that goes on with the tensor that is picked, in place
    names = load(HEAD + WRITTEN + TAIL, tmp_path / "program.py")
    # WHEN it is diagnosed THEN no copy is advised, which would leave the list as it is
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert "stale-input" in diagnosis.codes, str(diagnosis)
    assert "tables_in" not in str(diagnosis), str(diagnosis)
