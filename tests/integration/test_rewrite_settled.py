"""A step that was parted by an earlier diff, asked again: its part is there, and is not cut out once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
TRACKER = """
class Tracker:
    def __init__(self):
        self.w = torch.randn(6, 6, device=device)
        self.state = torch.zeros(4, 6, device=device)
        self.rate = 0.7
        self.frame = 0
        self.events = []

    def update(self, x):
        self.frame += 1
        y = torch.tanh(x @ self.w)
        self.state = self.rate * self.state + (1 - self.rate) * y
        score = self.state.square().mean(-1)
        for i in range(len(score)):
            if score[i] > 0.1:
                self.events.append((self.frame, i))
                self.state[i] = 0
        self.rate = min(0.9, self.rate + 0.01)
        return self.state


f = Tracker().update
args = (torch.randn(4, 6, device=device),)
"""
LOADED = """
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(12, 6), torch.randn(12, 1)), batch_size=4)
def f(model, opt):
    history = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        history.append(loss.item())
    return history
args = (net, opt)
"""


def _parted(tmp_path: Path) -> str:
    names = run(TRACKER, tmp_path)
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    assert found.fix.alone == "update_part"
    ((_, lines),) = found.fix.texts.items()
    return "".join(lines)


def test_a_part_that_is_there_is_not_cut_out_again(tmp_path: Path) -> None:
    # GIVEN a step with the part that a diff has cut out of it
    again = load(_parted(tmp_path), tmp_path / "again.py")
    # WHEN it is asked again
    found: Any = pgk.diagnose(again["f"], *again["args"], fix=True)
    # THEN that part is what a graph holds, proved, and no line is another one
    assert found.fix.alone == "update_part"
    assert found.fix.diff == ""
    assert found.fix.capture == "partial(update_part, self)"
    assert found.fix.loop == ["state_in, score = launched(x, state_in, rate_in, rate_in_2)"]
    told = "\n".join(found.fix.verified)
    assert "is what a graph holds already: capture `partial(update_part, self)`" in told
    assert "update_part: replays of one graph give eager's results" in told
    assert "_part_2" not in str(found)
    # AND of each line it is told on which side of the launch it is
    within = [f.fix for f in found if f.frame is not None and "rate_in * state_in" in f.frame.text]
    assert within
    assert all("stays as it is, in `update_part`, which a graph holds already" in text for text in within)
    assert all("stays as it is" in f.fix for f in found)


def test_a_part_that_somebody_has_changed_is_looked_at(tmp_path: Path) -> None:
    # GIVEN the same, where somebody has the part wait for a number
    text = _parted(tmp_path).replace(
        "    score = state_in.square().mean(-1)\n",
        "    score = state_in.square().mean(-1)\n    self.events.append(score.max().item())\n",
    )
    again = load(text, tmp_path / "changed.py")
    # WHEN it is asked again
    found: Any = pgk.diagnose(again["f"], *again["args"], fix=True)
    # THEN it is not told to be right
    assert "sync-item" in {f.code for f in found}
    assert "holds already" not in str(found)


def test_a_round_that_is_there_is_not_cut_out_again(tmp_path: Path) -> None:
    # GIVEN a training loop with the round that a diff has cut out of it
    names = run(LOADED, tmp_path)
    ((_, lines),) = pgk.diagnose(names["f"], *names["args"], fix=True).fix.texts.items()  # type: ignore[union-attr]
    again = load("".join(lines), tmp_path / "again.py")
    # WHEN it is asked again
    found: Any = pgk.diagnose(again["f"], *again["args"], fix=True)
    # THEN that round is what a graph holds
    assert (found.fix.alone, found.fix.diff) == ("f_round", "")
    assert all("stays as it is, beside the part that a graph holds" in f.fix for f in found)
