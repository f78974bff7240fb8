"""Ranges of Python's from a number that a step counts, made into tensors: they begin at its tensor then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.usefixtures("recovered")
PROGRAM = """
class Engine:
    def __init__(self):
        self.table = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).to(device)
        self.rows = torch.zeros(64, 8, device=device)
        self.pos = 0
    def step(self, x):
        n = x.shape[0]
        where = MADE
        self.rows[self.pos:self.pos + n] = x + self.table[where]
        self.pos += n
        return self.rows.sum(0)
engine = Engine()
f, args = engine.step, (torch.randn(2, 8, generator=torch.Generator().manual_seed(1)).to(device),)
"""
MADE = (
    "torch.tensor(range(self.pos, self.pos + n), device=device)",
    "torch.tensor(list(range(self.pos, self.pos + n)), device=device)",
    "torch.as_tensor(range(self.pos, self.pos + n), device=device)",
    "torch.tensor(range(self.pos, self.pos + n), device=device).flip(0)",
)


@pytest.mark.parametrize("made", MADE)
def test_a_range_from_what_a_step_counts_begins_at_its_tensor(made: str, tmp_path: Path) -> None:
    # GIVEN a step that counts a place, and makes a tensor of the range from there WHEN it is rewritten
    fix = rewritten(PROGRAM.replace("MADE", made), tmp_path)
    # THEN nothing gives a range a tensor, and all of it can be captured
    assert fix.complete, fix
    assert "clone()" not in fix.diff, fix
