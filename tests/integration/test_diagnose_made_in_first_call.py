"""What a step makes in its first call and keeps: a capture in that call has the making of it, and is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\n"
STEP = """class Scaler:
    def __init__(self):
        self.base, self.norm, self.cache = torch.rand(6, device=device), None, {}
    def scale(self):
BODY
    def step(self, x):
        y = x / self.scale()
        self.base.mul_(1.01)
        return y
f, x = Scaler().step, torch.rand(6, device=device)
"""
BY_KEY = """        if "norm" not in self.cache:
            self.cache["norm"] = self.base.norm() + 1
        return self.cache["norm"]"""
BY_NONE = """        if self.norm is None:
            total = self.base.sum()
            self.norm = total + 1
        return self.norm"""
BY_NAME = """        if not hasattr(self, "held"):
            self.held = torch.rand(6, device=device) + 1
        return self.held"""
WRITTEN = """        if self.norm is None:
            self.norm = torch.ones(6, device=device)
        self.norm.add_(0.1)
        return self.norm"""
CONSTANT = """        if self.norm is None:
            self.norm = torch.arange(1, 7, device=self.base.device) / self.base.shape[0]
        return self.norm"""
EACH_TIME = """        self.norm = self.base.norm() + 1
        return self.norm"""


@pytest.mark.parametrize(
    ("body", "target", "of"),
    [
        (BY_KEY, "self.cache['norm']", "of `self.base`, which later calls change"),
        (BY_NONE, "self.norm", "of `self.base`, which later calls change"),
        (BY_NAME, "self.held", "of random numbers"),
        (WRITTEN, "self.norm", "and others write it where it is"),
    ],
)
def test_what_the_first_call_makes_is_to_be_made_before_a_capture(
    body: str, target: str, of: str, tmp_path: Path
) -> None:
    # GIVEN a step whose first call makes something that another call would make otherwise, and that nobody sets again
    made = load(HEAD + STEP.replace("BODY", body), tmp_path / "first.py")
    # WHEN it is looked at
    found = pgk.diagnose(made["f"], made["x"])
    # THEN it is no problem, and one line says to run it once before its capture
    assert not found
    told = [note for note in found.notes if note.startswith(f"the first call makes `{target}` {of}")]
    assert len(told) == 1
    assert "run it once before it is captured" in told[0]


@pytest.mark.parametrize("body", [CONSTANT, EACH_TIME])
def test_a_table_that_each_replay_may_make_is_not_told(body: str, tmp_path: Path) -> None:
    # GIVEN a table of sizes alone, or what is made in each call anyway
    made = load(HEAD + STEP.replace("BODY", body), tmp_path / "table.py")
    # WHEN it is looked at
    found = pgk.diagnose(made["f"], made["x"])
    # THEN nothing is said of a first call
    assert not any("first call" in note for note in found.notes)


def test_what_is_made_of_an_argument_is_told(tmp_path: Path) -> None:
    # GIVEN a centre that the first batch gives, for all
    text = "class C:\n    c = None\n    def step(self, x):\n        if self.c is None:\n            self.c = x.mean()\n"
    made = load(
        f"{HEAD}{text}        return x - self.c\nf, x = C().step, torch.rand(6, device=device)", tmp_path / "c.py"
    )
    # WHEN it is looked at
    found = pgk.diagnose(made["f"], made["x"])
    # THEN a capture in the first call is told to centre each batch by its own
    assert [note for note in found.notes if note.startswith("the first call makes `self.c` of `x`, which")]
