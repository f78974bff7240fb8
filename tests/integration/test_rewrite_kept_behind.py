"""Where what is captured is told to end, what a graph reads again is told to be written in place behind that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
SOLVER = """import torch, paramgraph_kit as pgk
device = pgk.device()
class Solver:
    def __init__(self):
        self.y, self.old, self.seen = torch.ones(4, 2, device=device), torch.zeros(4, 2, device=device), None
        self.rejected = 0
    def attempt(self, drive):
        new = self.y + 0.1 * (drive - self.old)
        return new, (new - self.y).norm()
    def advance(self, drive):
        new, err = self.attempt(drive)
        e = err.item()
        if e <= 1.0:
            KEEPS
        else:
            self.rejected += 1
        return self.y
s = Solver()
"""
TOLD = {
    "self.y = new": "; there `self.y.copy_(new)` for `self.y = new`, as a graph goes on with the tensor",
    "self.y, self.old = self.old, self.y": "there `kept = self.y.clone()`, `self.y.copy_(self.old)` and `self.old",
}


@pytest.mark.parametrize("line", TOLD)
def test_a_tensor_that_the_graph_reads_is_written_in_place_behind_it(line: str, tmp_path: Path) -> None:
    # GIVEN a solver that keeps its new state where the error, which the host reads, is small
    names = load(SOLVER.replace("KEEPS", line), tmp_path / "program.py")
    # WHEN its step is diagnosed
    found = pgk.diagnose(names["s"].advance, torch.ones(4, 2, device=pgk.device()))
    # THEN the words that end what is captured at the reading say how the state is kept behind it
    (fix,) = (f.fix for f in found if f.code == "sync-item")
    assert "end what is captured here" in fix, fix
    assert TOLD[line] in fix, fix


def test_what_no_graph_reads_is_kept_as_it_was(tmp_path: Path) -> None:
    # GIVEN the same with a result that only what is around the step reads WHEN it is diagnosed THEN it stays
    names = load(SOLVER.replace("KEEPS", "self.seen = new"), tmp_path / "program.py")
    found = pgk.diagnose(names["s"].advance, torch.ones(4, 2, device=pgk.device()))
    assert "self.seen.copy_" not in str(found), str(found)
