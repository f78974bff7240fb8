"""Batches that a step fetches by an index of its own, or within another line: they are fetched before each launch."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
HEAD = "import torch, paramgraph_kit as pgk\ndevice = pgk.device()\n"
LISTED = """class Data:
    def __init__(self):
        self.data = [torch.randn(4, device=device) for _ in range(5)]
        self.i = 0
        self.w = torch.zeros(4, device=device)
    def step(self):
        b = PICKED
        self.w.add_(b)
        COUNTED
        return self.w.sum()
f = Data().step
"""
WITHIN = """batches = iter([torch.randn(4, 4, device=device) for _ in range(50)])
net = torch.nn.Linear(4, 2).to(device)
def f():
    out = net(next(batches))
    return out.mean()
"""


@pytest.mark.parametrize(
    ("picked", "counted"),
    [
        ("self.data[self.i]", "self.i = (self.i + 1) % len(self.data)"),
        ("self.data[self.i % len(self.data)]", "self.i += 1"),
    ],
)
def test_what_an_index_picks_of_a_list_is_copied_before_each_launch(picked: str, counted: str, tmp_path: Path) -> None:
    # GIVEN a step that picks a tensor of a list of the host's by a number that it counts
    names = load(HEAD + LISTED.replace("PICKED", picked).replace("COUNTED", counted), tmp_path / "program.py")
    # WHEN a fix is asked for THEN the tensor is copied before each launch, and the number stays the host's
    fix = pgk.diagnose(names["f"], fix=True).fix
    assert fix is not None
    assert fix.complete, str(fix)
    assert "b_in.copy_(b)" in fix.diff, str(fix)


def test_what_next_gives_within_a_line_has_words(tmp_path: Path) -> None:
    # GIVEN a step that gives a model what it fetches, in one line
    names = load(HEAD + WITHIN, tmp_path / "program.py")
    # WHEN it is diagnosed THEN the words fetch it before each launch
    diagnosis = pgk.diagnose(names["f"], fix=True)
    assert diagnosis.codes == ("stale-input",), str(diagnosis)
    assert "before each launch `fetched_in.copy_(next(batches))`" in str(diagnosis.fix), str(diagnosis)
