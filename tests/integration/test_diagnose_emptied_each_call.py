"""Lists that a call fills and empties again, by another list in their place: they are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).to(device)
class Tap:
    def __init__(self):
        self.seen, self.kept, self.calls = [], [], {}
        net[0].register_forward_hook(self.note)
    def note(self, module, given, out): FILL
    def take(self):
        EMPTY
        return seen
tap = Tap()
ROWS = []
def f(x):
    out = net(x)
    return out.sum() + sum(each.sum() for each in tap.take())
inputs = (torch.ones(4, 6, device=device),)
"""
FILLED = "self.seen.append(out)"
LEFT = [
    (FILLED, "seen, self.seen = self.seen, []"),
    (FILLED, "seen = self.seen; self.seen = []"),
    (FILLED, "seen = list(self.seen); self.seen.clear()"),
    ("self.calls[module] = out", "seen = [*self.calls.values()]; self.calls = {}"),
    ("ROWS.append(out)", "global ROWS; seen, ROWS = ROWS, []"),
]
WRONG = [
    (FILLED, "seen, self.seen = self.seen, []; self.kept = self.kept + seen"),
    (FILLED, "seen = [*self.seen]; self.seen = self.seen[:]"),
]


@pytest.mark.parametrize(("fill", "empty"), LEFT)
def test_a_list_that_is_as_it_was_is_not_told(fill: str, empty: str, tmp_path: Path) -> None:
    # GIVEN a hook that fills a list, and the same call that takes it away WHEN diagnosed THEN there is no problem
    names = load(PROGRAM.replace("FILL", fill).replace("EMPTY", empty), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert not diagnosis, str(diagnosis)


@pytest.mark.parametrize(("fill", "empty"), WRONG)
def test_a_list_that_has_other_entries_is_told(fill: str, empty: str, tmp_path: Path) -> None:
    # GIVEN a list that has others behind a call, or one that grows WHEN diagnosed THEN it is told
    names = load(PROGRAM.replace("FILL", fill).replace("EMPTY", empty), tmp_path / "program.py")
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert diagnosis, str(diagnosis)
