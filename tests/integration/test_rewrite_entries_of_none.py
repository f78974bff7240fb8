"""An entry of a table that is None at first is written in place only where it has a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
WORLD = """import torch, paramgraph_kit as pgk
device = pgk.device()
class World:
    def __init__(self):
        self.x, self.held = torch.arange(5.0, device=device), dict(near=None)
    def pulls(self):
        if self.held["near"] is None or (self.x - self.held["near"]).abs().max() > 0.1:
            self.held["near"] = self.x.clone()
        return torch.sin(self.x - self.held["near"])
    def step(self, drive):
        self.x = self.x + 0.1 * drive
        return self.pulls()
s = World()
s.pulls()
"""


def test_no_verified_diff_writes_to_an_entry_while_it_is_none(tmp_path: Path) -> None:
    # GIVEN a step that keeps a tensor in a table, whose entry is None until a first call, which has been
    names = load(WORLD, tmp_path / "program.py")
    # WHEN it is rewritten
    found = pgk.diagnose(names["s"].step, torch.linspace(-1, 2, 5, device=pgk.device()), fix=True)
    # THEN a new process can run the new lines from its first call on, or nothing is said to be proved
    fix = found.fix
    if fix is not None and fix.complete:
        new = "".join("".join(lines) for lines in fix.texts.values())
        load(new, tmp_path / "another.py")
