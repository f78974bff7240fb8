"""A number that a loop sets between calls is told where its line has another problem, too: mending that leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
BATH = """import math
import torch, paramgraph_kit as pgk
device = pgk.device()
class Bath:
    def __init__(self):
        self.v, self.heat = torch.zeros(6, device=device), 1.0
        self.rng = torch.Generator().manual_seed(0)
bath = Bath()
def f(x):
    wide = math.sqrt(0.2 * bath.heat)
    noise = torch.randn(6, generator=bath.rng)
    LINE
    return bath.v.sum()
def main():
    for k in range(8):
        f(torch.full((6,), 0.1 * k, device=device))
        SETS
args = (torch.ones(6, device=device),)
"""
COPIES = "bath.v.copy_(0.9 * bath.v + wide * noise.to(device) + x)"
READS = "bath.v.copy_(0.9 * bath.v * x.sum().item() + wide * x)"
SETS = "bath.heat = 1.0 + 0.1 * k"


@pytest.mark.parametrize(("line", "code"), [(COPIES, "copy-to-gpu"), (READS, "sync-item")])
@pytest.mark.parametrize("sets", [True, False])
def test_a_number_that_a_loop_sets_is_told_beside_another_problem_of_its_line(
    line: str, code: str, sets: bool, tmp_path: Path
) -> None:
    # GIVEN a line that copies, or reads, and scales by a number that a loop around the step sets, or leaves
    text = BATH.replace("LINE", line).replace("SETS", SETS if sets else "pass")
    names: dict[str, Any] = load(text, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN both are told, each once
    said = {each.code: each.message for each in found}
    assert code in said, found
    assert ("bath.heat is set between calls, at" in said.get("scalar-frozen", "")) is sets, found
    assert said[code].count("it is drawn on the host") <= 1
