"""Names that exchange their tensors between the calls of a step: one copy alone would lose the other's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\n"
WAVE = """class Wave:
    def __init__(self):
        self.u = torch.rand(8, 8, device=device)
        self.v = torch.zeros_like(self.u)
        self.mean = torch.zeros(8, device=device)
    def step(self, x):
        self.v.copy_(self.u - 0.1 * (self.u - self.u.mean()) + x)
        BODY
        return self.v.clone()
    def turn(self):
        self.u, self.v = self.v, self.u
w = Wave()
f, x = w.step, torch.rand(8, 8, device=device)
"""
CALLED = """def run(xs):
    for each in xs:
        w.step(each)
        w.turn()
"""
BY_LOOP = """def run(xs):
    for each in xs:
        w.step(each)
        w.u, w.v = w.v, w.u
"""


def _exchange(of: str) -> str:
    return f"held = {of}.u.clone(); {of}.u.copy_({of}.v); {of}.v.copy_(held)"


@pytest.mark.parametrize(("loop", "of"), [(CALLED, "self"), (BY_LOOP, "w")])
def test_an_exchange_between_calls_is_told_as_one(loop: str, of: str, tmp_path: Path) -> None:
    # GIVEN two fields that a step reads and writes, and that a loop exchanges behind it
    made = load(HEAD + WAVE.replace("BODY", "") + loop, tmp_path / "wave.py")
    # WHEN the step is looked at
    found = pgk.diagnose(made["f"], made["x"])
    # THEN the words exchange what both hold, with nothing lost
    assert found
    assert all(_exchange(of) in f.fix for f in found)


def test_an_exchange_that_nobody_is_known_to_call_is_told_as_one(tmp_path: Path) -> None:
    # GIVEN the same without a loop
    made = load(HEAD + WAVE.replace("BODY", ""), tmp_path / "alone.py")
    # WHEN the step is looked at
    found = pgk.diagnose(made["f"], made["x"])
    # THEN the note says it
    told = [note for note in found.notes if "where that runs between launches" in note]
    assert told
    assert all(_exchange("self") in note for note in told)


def test_an_exchange_beside_a_rewritten_step_is_told_as_one(tmp_path: Path) -> None:
    # GIVEN a step that has a problem of its own, beside a method that exchanges
    body = "self.mean = self.mean * 0.9 + self.u.mean(0)"
    made = load(HEAD + WAVE.replace("BODY", body), tmp_path / "beside.py")
    # WHEN it is rewritten
    found: Any = pgk.diagnose(made["f"], made["x"], fix=True)
    # THEN what was tried says the exchange
    told = [line for line in found.fix.verified if "which a graph reads where it is" in line]
    assert told
    assert all(_exchange("self") in line for line in told)
