"""Tensors that a rewritten step writes in place: lines elsewhere that give it another are told what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

AVERAGE = """\
class Average:
    def __init__(self, w):
        self.value = w.clone()
    def step(self, x):
        self.value = self.value * 0.9 + x * 0.1
        return self.value * 2
    def restart(self, w):
        self.value = w
class Other:
    def restart(self, w):
        self.value = w
average = Average(torch.ones(3, device=device))
args = (torch.randn(3, device=device),)
f = average.step
def loop(xs):
    for x in xs:
        average.value = x
        average.step(x)
"""


def test_lines_that_rebind_what_a_step_writes_in_place_are_told(tmp_path: Path) -> None:
    # GIVEN a state that becomes one tensor, and lines elsewhere that give it another WHEN it is rewritten
    found = rewritten(AVERAGE, tmp_path)
    # THEN the diff says what these write, by their own names, and nothing of another class's or of __init__
    told = [line for line in found.verified if "is one tensor now" in line]
    assert [line.partition(", or capture")[0].partition("is: ")[2].partition(" ")[2] for line in told] == [
        "17 writes `self.value.copy_(w)` for `self.value = w`",
        "26 writes `average.value.copy_(x)` for `average.value = x`",
    ]
