"""Captures of before in methods that have variables for what their object holds: ``lattice = self.lattice``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Field:
    def __init__(self):
        torch.manual_seed(0)
        self.rate, self.u = 0.5, torch.rand(8).to(device)
        self.seen = torch.zeros(2, device=device)
    def advance(self):
        self.u.add_(self.rate * (self.u.roll(1) - self.u))
        self.seen[0].copy_(self.u.mean())
        self.seen[1].copy_(self.u.std())
class Run:
    def __init__(self, field):
        self.field, self.graph = field, None
    def capture(self):
        NAMED
        kept = it.u.clone()
        it.advance()
        it.u.copy_(kept)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            it.advance()
    def run(self, steps):
        seen = []
        for i in range(steps):
            LINE
            self.graph.replay()
            seen.append(KEPT)
        return seen
run = Run(Field())
run.capture()
"""
NAMED = ("it = self.field", "it, stream = self.field, cuda.Stream()", "owner = self\n        it = owner.field")


def told(named: str, line: str, kept: str, file: Path) -> list[tuple[str, str]]:
    """What is told of the loop, with the code of each and its line."""
    names = load(PRELUDE + PROGRAM.replace("NAMED", named).replace("LINE", line).replace("KEPT", kept), file)
    failures, notes = (found := pgk.diagnose(names["run"].run, 3)).failures, found.notes
    assert not any("warm-up" in note for note in notes), notes
    return [(f.code, f.frame.text if f.frame is not None else "") for f in failures]


@pytest.mark.parametrize("named", NAMED)
def test_what_a_loop_keeps_and_sets_is_told_through_a_variable_of_the_capture(named: str, tmp_path: Path) -> None:
    # GIVEN a capture through a variable for what its object holds, and a loop that keeps its result and sets a number
    line = "self.field.rate = 0.1 * (i + 1)"
    # WHEN it is asked THEN both are told
    assert sorted(told(named, line, "self.field.seen", tmp_path / "program.py")) == [
        ("output-alias", "seen.append(self.field.seen)"),
        ("scalar-frozen", line),
    ]


@pytest.mark.parametrize("named", NAMED)
def test_copies_and_numbers_that_stay_are_right(named: str, tmp_path: Path) -> None:
    # GIVEN the same with copies, and the number that is there WHEN it is asked THEN nothing is told
    assert told(named, "self.field.rate = 0.5", "self.field.seen.clone()", tmp_path / "program.py") == []


def test_tensors_that_are_exchanged_are_copied_ahead_of_both_writes(tmp_path: Path) -> None:
    # GIVEN a capture whose step exchanges two tensors that its object holds
    text = PROGRAM.replace("NAMED", NAMED[0]).replace("LINE", "pass").replace("KEPT", "self.field.seen.clone()")
    swap = "self.u, self.old = self.old, self.u\n    def"
    text = text.replace("        self.seen[0]", "        self.old.lerp_(self.u, 0.5)\n        self.seen[0]")
    text = text.replace("(self.u.std())\n", f"(self.u.std())\n        {swap.removesuffix('    def')}")
    text = text.replace("        self.seen =", "        self.old = torch.zeros(8, device=device)\n        self.seen =")
    run = load(PRELUDE + text, tmp_path / "program.py")["run"]
    # WHEN it is asked
    fixes = [f.fix.partition("\nafter   ")[2] for f in pgk.diagnose(run.run, 3).failures if f.code == "stale-input"]
    # THEN the words copy what the first write would take from the second one
    after = "new_u, new_old = (self.old.clone(), self.u.clone()); self.u.copy_(new_u); self.old.copy_(new_old)"
    assert fixes == [after]


def test_a_variable_that_is_given_something_else_is_no_name_for_it(tmp_path: Path) -> None:
    # GIVEN a variable that is given another object behind that
    named = "it = self.field\n        it = self.field = Field()"
    # WHEN it is asked THEN nothing is told of what is right
    assert told(named, "pass", "self.field.seen.clone()", tmp_path / "program.py") == []
