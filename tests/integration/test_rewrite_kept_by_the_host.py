"""A number of the host's that a graph keeps is told by what it is, in each line that reads it and in no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.test_rewrite_kept_of_a_size import WORLD
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
SIZE = """    @property
    def size(self):
        return 1.4 + 0.1 * self.t
    def pulls(self):"""
SIZED = (
    WORLD.replace("AHEAD", "pass")
    .replace("    def pulls(self):", SIZE)
    .replace("gap = self.x[a] - self.x[b]", "gap = self.x[a] - self.x[b]\n        gap = gap - self.size")
    .replace("self.table, self.pull = Table(),", "self.t = 0.0\n        self.table, self.pull = Table(),")
    .replace(
        "self.pull.copy_(self.pulls())\n        return self.x",
        "self.pull = self.pulls()\n        self.t += 0.1\n        return self.x",
    )
)
FILTER = """import torch, random, paramgraph_kit as pgk
device = pgk.device()
class Filter:
    def __init__(self):
        self.rng = random.Random(0)
        self.state = torch.linspace(0, 3, 8, device=device)
    def pick(self, weights):
        at = (self.rng.random() + torch.arange(8, device=device)) / 8
        self.state = self.state[torch.searchsorted(weights.cumsum(0), at).clamp(max=7)]
    def step(self, drive):
        self.state = torch.sin(self.state + drive)
        weights = torch.softmax(4 * self.state, 0)
        mean = (weights * self.state).sum()
        if 1 / weights.pow(2).sum() < 7.5:
            self.pick(weights)
        return mean
f = Filter()
"""


@pytest.mark.parametrize("fix", [False, True])
def test_a_tensor_is_told_to_be_no_number_of_the_host_s(fix: bool, tmp_path: Path) -> None:
    # GIVEN a step that takes a number, which a property makes, off a difference of the device's
    names = load(SIZED, tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["w"].step, torch.linspace(-1, 2, 5, device=pgk.device()), fix=fix)
    # THEN the words of that line give no tensor of the device to a launch
    (frozen,) = (f.fix for f in found if f.code == "scalar-frozen")
    assert "gap_in" not in frozen, frozen
    if fix:
        assert "`self.t`" in frozen, frozen


def test_a_number_of_lines_behind_the_launch_has_no_words_of_another_value(tmp_path: Path) -> None:
    # GIVEN a filter that draws a number of the host's where the device asks for it
    names = load(FILTER, tmp_path / "program.py")
    # WHEN its step is rewritten, and the draw goes behind the launch
    found = pgk.diagnose(names["f"].step, torch.tensor(0.1, device=pgk.device()), fix=True)
    # THEN the draw's line has no words of the state, which is another problem's
    drawn = [f.fix for f in found if f.frame is not None and "rng.random" in f.frame.text]
    assert drawn, str(found)
    assert not any("self.state" in fix.partition("after")[2] for fix in drawn), drawn
