"""Words for numbers that a step decides, or is given, and reads in the same step: never one step late."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import by_hand
from paramgraph_kit.rewrite.ways import Ways
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
DECIDES = """
import math
RATE = 2.0
class Source:
    def __init__(self):
        self.base = torch.ones(4, device=device)
    def value(self, phase):
        return self.base * math.sin(RATE * phase)

class Flow:
    def __init__(self):
        self.state, self.force = torch.ones(4, device=device), torch.ones(4, device=device)
        self.source, self.phase, self.width = Source(), 0.0, 0.1

    def limit(self):
        largest = self.force.abs().max().item()
        self.width = min(0.1, 0.3 / max(largest, 1e-6))

    def move(self):
        BEFORE
        rate = self.source.value(self.phase) - self.state * self.force
        BETWEEN
        self.state.add_(rate, alpha=self.width)
        BEHIND
        self.phase += 0.1

flow = Flow()
"""
WAYS = {
    "BEFORE": "belongs before each launch: take it out of the step; `self.width`",
    "BETWEEN": "belongs between two launches: one graph ends ahead of it, and another one begins behind it",
    "BEHIND": "belongs behind the launch: take it out of the step",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_a_step_decides_is_not_told_to_come_one_step_late(way: str, tmp_path: Path) -> None:
    # GIVEN a step that asks the device for a width, ahead of where it reads that, or behind it
    text = DECIDES
    for each in WAYS:
        text = text.replace(each, "self.limit()" if each == way else "pass")
    text = text.replace("        pass\n", "")
    names = load(PRELUDE + text, tmp_path / "program.py")
    failures = pgk.diagnose(names["flow"].move).failures
    # WHEN nothing of it is rewritten
    told = "\n".join(by_hand.lines(Ways(names["flow"].move, (), {}), failures))
    # THEN where it goes depends on that; no tensor is what `alpha` gets, and no constant is what the host decides
    assert WAYS[way] in told, told
    assert "a tensor is no `alpha=` or `value=`, so line" in told, told
    assert "self.state.add_(rate * (width_in))" in told, told
    assert "`RATE`" not in told, told
    assert "`phase_in.fill_(self.phase)`, line" in told, told
    assert "`torch.sin` stands for `math.sin`" in told
