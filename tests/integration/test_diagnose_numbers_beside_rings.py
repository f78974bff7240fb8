"""Number arguments of a step that also fills a ring: where counts move on to a place of none, a call fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
RING = """
class Ring:
    def __init__(self, n):
        self.rows, self.at = torch.zeros(n, 4, device=device), 0
    def push(self, x):
        self.rows[self.at : self.at + len(x)] = x
        self.at = (self.at + len(x)) % len(self.rows)
ring = Ring(32)
def step(x, temperature):
    y = LINE.softmax(-1)
    ring.push(y)
    return y.sum()
args = (torch.randn(8, 4, device=device), 0.2)
"""


@pytest.mark.parametrize(("line", "told"), [("(x / temperature)", True), ("(x / 0.2)", False)])
def test_a_number_is_told_beside_a_ring(line: str, told: bool, tmp_path: Path) -> None:
    # GIVEN a step with a number among its arguments, which it computes with or not, and a ring that it fills
    names = load(PRELUDE + RING.replace("LINE", line), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["step"], *names["args"])
    # THEN the number is told at its line, and no note says that nobody knows
    assert ("y = (x / temperature).softmax(-1)" in [f.frame.text for f in found if f.frame is not None]) == told
    assert not any("with other numbers as arguments it fails" in note for note in found.notes)
    # AND the ring is where it was
    assert names["ring"].at == 0
