"""What a rewrite leaves exchanged is told at once: lines of the graph, and those that go around the launch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.exchanged_states import in_place
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
HEAD = "import math, torch, paramgraph_kit as pgk\ndevice = pgk.device()\n"
FILTER = f"""{HEAD}
import random
MARKS = [0.5, 1.5]
class Moves:
    def __init__(self, spread):
        self.spread = spread
    def __call__(self, p, drive):
        return torch.stack([p[:, 0] + drive * p[:, 1].cos(), p[:, 1] + self.spread * drive], 1)
class Filter:
    def __init__(self):
        self.places = torch.linspace(0, 3, 32, device=device).reshape(16, 2)
        self.logs = torch.full((16,), -math.log(16), device=device)
        self.moves, self.rng = Moves(0.1), random.Random(0)
        self.seen, self.picked, self.t = 0.0, 0, 0
    def fits(self, sight):
        marks = torch.tensor(MARKS, device=device)
        width = 2.0 if self.t < 4 else 0.5
        return -0.5 * ((self.places[:, :1] - marks - sight) / width).pow(2).sum(1)
    def pick(self, weights):
        at = (self.rng.random() + torch.arange(16, device=device)) / 16
        self.places = self.places[torch.searchsorted(weights.cumsum(0), at.to(weights.dtype)).clamp(max=15)]
        self.logs = torch.full_like(self.logs, -math.log(16))
        self.picked += 1
    def step(self, drive, sight):
        self.places = self.moves(self.places, drive)
        logs = self.logs + self.fits(sight)
        norm = torch.logsumexp(logs, 0)
        self.seen += float(norm)
        self.logs = logs - norm
        weights = self.logs.exp()
        mean = (weights[:, None] * self.places).sum(0)
        few = 1 / weights.pow(2).sum()
        if few < 8:
            self.pick(weights)
        self.t += 1
        return mean, few
s = Filter()
"""
TOLD = {
    "self.x = self.moves(self.x)": "`self.x.copy_(self.moves(self.x))`",
    "self.x = self.x.t()": "`self.x.copy_(self.x.t().clone())`",
    "self.pull, energy = self.pulls()": "`pull_now, energy = self.pulls()` and behind it `self.pull.copy_(pull_now)`",
    "self.pull, n = self.taken()": "`pull_now_2, n = self.taken()` and behind it `self.pull.copy_(pull_now_2)`",
    "a, self.y = self.y, a": "`a, y_now = self.y.clone(), a` and behind it `self.y.copy_(y_now)`",
}


def _by_hand(program: str, path: Path, *given: torch.Tensor) -> str:
    names = load(program, path)
    return str(pgk.diagnose(names["s"].step, *(each.to(pgk.device()) for each in given), fix=True))


def test_what_a_method_behind_the_launch_exchanges_is_told_at_once(tmp_path: Path) -> None:
    # GIVEN a filter that exchanges two tensors in a method that goes behind the launch, and one of them in the step
    # WHEN its step is rewritten
    text = _by_hand(FILTER, tmp_path / "program.py", torch.full((16,), 0.1), torch.tensor([0.2, 0.4]))
    # THEN what that method is to write is in the first answer
    assert "self.logs.copy_(torch.full_like(self.logs, -math.log(16)))" in text, text
    assert "self.places.copy_(self.moves(self.places, drive))" in text, text


@pytest.mark.parametrize("line", TOLD)
def test_a_line_of_the_graph_is_told_in_its_own_names(line: str) -> None:
    # GIVEN a line that gives a tensor of an object another one, perhaps among others
    (node,) = ast.parse(line).body
    assert isinstance(node, ast.Assign)
    targets = [n for n in ast.walk(node.targets[0]) if isinstance(n, ast.Attribute)]
    # WHEN words are asked for it THEN they write into the one that is there, by names that nothing has
    assert in_place(node, targets[-1], {"pull_now"} if "taken" in line else set()) == TOLD[line]
