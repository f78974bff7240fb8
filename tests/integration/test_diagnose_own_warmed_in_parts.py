"""Warm-ups that move a state of which a capture writes over a part ahead of all else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Heat:
    def __init__(self):
        self.u = torch.zeros(1, 6, 6, device=device)
        self.pad = torch.zeros(1, 8, 8, device=device)
        self.top = torch.ones(6, device=device)
        self.graph = None
    def once(self):
        BEGIN
        self.pad[:, 1:-1, 1:-1] = self.u
        self.pad[:, :, 0] = -self.pad[:, :, 1]
        self.pad[:, :, -1] = -self.pad[:, :, -2]
        self.pad[:, 0, :] = -self.pad[:, 1, :]
        self.pad[:, -1, :] = -self.pad[:, -2, :]
        around = self.pad[:, 2:, 1:-1] + self.pad[:, :-2, 1:-1] + self.pad[:, 1:-1, 2:] + self.pad[:, 1:-1, :-2]
        END
    def step(self, top):
        self.top.copy_(top)
        if self.graph is None:
            side = cuda.Stream(); side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                for _ in range(3):
                    self.once()
            cuda.current_stream().wait_stream(side)
            BACK
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.once()
        self.graph.replay()
        return self.u.clone()
step, args = Heat().step, (torch.rand(6).to(device),)
"""
GOES_ON = "self.u.copy_(self.u + 0.1 * (around - 4 * self.u))"
ADDS = "self.u[:, 1:].add_(0.1 * (around - 4 * self.u)[:, 1:])"
LID = "self.u[0, -1, :] = self.top"


def said(tmp_path: Path, begin: str, end: str, back: str = "pass") -> list[str]:
    """What is noted of the warm-up of such a program."""
    program = PROGRAM.replace("BEGIN", begin).replace("END", end).replace("BACK", back)
    names = load(PRELUDE + program, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["step"], *names["args"])
    return [note for note in found.notes if "has moved" in note]


@pytest.mark.parametrize("end", [GOES_ON, pytest.param(ADDS, marks=pytest.mark.sweep)])
def test_a_state_that_is_written_over_in_part_first_is_moved_by_a_warm_up(tmp_path: Path, end: str) -> None:
    # GIVEN a capture that sets the last row of a state and goes on from the others, warmed up three times
    # WHEN it is diagnosed
    notes = said(tmp_path, LID, end)
    # THEN the note names that state, and no scratch
    assert ["has moved `self.u`, and nothing puts that back" in note for note in notes] == [True]


@pytest.mark.parametrize(
    ("begin", "end", "back"),
    [
        (LID, GOES_ON, "self.u.zero_()"),
        (f"{LID}; self.u[0, :-1, :] = self.top", GOES_ON, "pass"),
        pytest.param(LID, "self.out = self.u + around", "pass", marks=pytest.mark.sweep),
    ],
)
def test_what_is_put_back_or_written_over_by_all_parts_is_not_moved(
    tmp_path: Path, begin: str, end: str, back: str
) -> None:
    # GIVEN a state that is zeroed behind the warm-up, one that all parts write over, one that is only read on
    # WHEN it is diagnosed
    # THEN no note says that something has moved
    assert said(tmp_path, begin, end, back) == []
