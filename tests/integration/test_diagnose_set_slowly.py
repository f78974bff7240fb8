"""Numbers that a loop sets between calls, and that decide something only many rounds later: ``self.epoch // 10``."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
TRAINER = """
import bisect
class Trainer:
    def __init__(self):
        self.epoch, self.milestones = 0, [30, 60]
    def set_epoch(self, epoch):
        self.epoch = epoch
    def step(self, x):
        w = WEIGHT
        return (w * x.pow(2)).sum()
def train(epochs=100):
    trainer = Trainer()
    for epoch in range(epochs):
        trainer.set_epoch(epoch)
        trainer.step(torch.randn(8, device=device))
trainer = Trainer()
"""


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        ("0.5 ** (self.epoch // 10)", True),
        ("0.1 ** bisect.bisect_right(self.milestones, self.epoch)", True),
        ("0.5 ** min(self.epoch // 200, 3)", True),
        ("0.5 + 0 * self.epoch", False),
    ],
)
def test_what_such_a_number_decides_is_told(weight: str, told: bool, tmp_path: Path) -> None:
    # GIVEN a step that reads a number slowly, or for nothing, and a loop that sets it
    names = load(PRELUDE + TRAINER.replace("WEIGHT", weight), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["trainer"].step, names["torch"].ones(8, device=names["device"]))
    # THEN it is told where another epoch gives other numbers, with the line that sets it
    assert [f.code for f in found] == ["scalar-frozen"] * told
    assert all("self.epoch is set between calls" in f.message for f in found)
