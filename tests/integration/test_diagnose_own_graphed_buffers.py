"""Buffers that ``make_graphed_callables`` has moved ahead of its capture, where only a step is asked that replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINER = """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4))
    def forward(self, x):
        y = self.lin(x) * self.scale - self.seen
        if self.training:
            MOVES
        return y
    def count(self, x):
        with torch.no_grad():
            self.seen += x.mean(0)
class Trainer:
    def __init__(self, net=None):
        self.net = net = nn.Sequential(Centred(), nn.Linear(4, 2)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        MODE
        NAMED
        self.step_of = cuda.make_graphed_callables(MODULE, (torch.ones(3, 4, device=device, requires_grad=True),))
        BEHIND
    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.step_of(x).square().mean()
        loss.backward()
        self.optimizer.step()
        EAGERLY
        return loss.detach()
args = (torch.ones(3, 4, device=device, requires_grad=True),)
"""
WAYS = {
    "in place": {"MOVES": "self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)"},
    "by a method": {"MOVES": "self.count(x.detach())"},
    "under another name": {"NAMED": "body = self.net", "MODULE": "body"},
    "as a variable": {"MODULE": "net"},
}
LINES = {"NAMED": "pass", "MODULE": "self.net", "MODE": "pass", "BEHIND": "pass", "EAGERLY": "pass"} | WAYS["in place"]
RIGHT = {
    "it is put back": {"MODE": "then = self.net[0].seen.clone()", "BEHIND": "self.net[0].seen.copy_(then)"},
    "it begins anew": {"BEHIND": "self.net[0].seen.zero_()"},
    "it evaluates": {"MODE": "self.net.eval()"},
    "another line moves it": {"MOVES": "pass", "EAGERLY": "self.net[0].scale.mul_(0.9)"},
}


def _notes(path: Path, lines: dict[str, str]) -> list[str]:
    text = TRAINER
    for name, line in (LINES | lines).items():
        text = text.replace(name, line)
    names = run(text, path)
    found = pgk.diagnose(names["Trainer"]().step, *names["args"])
    return [note for note in found.notes if "has moved its buffers" in note]


@pytest.mark.parametrize("way", WAYS)
def test_a_buffer_that_replays_move_was_moved_ahead_of_the_capture(way: str, tmp_path: Path) -> None:
    # GIVEN a module of the user's with a state, graphed where its trainer is made WHEN its step alone is asked
    notes = _notes(tmp_path, WAYS[way])
    # THEN that state is named, and not the buffer that nothing writes
    assert len(notes) == 1
    assert "(`0.seen`)" in notes[0]


@pytest.mark.parametrize("title", RIGHT)
def test_a_buffer_that_is_as_it_was_is_none(title: str, tmp_path: Path) -> None:
    # GIVEN one that is put back, or is not moved by what is graphed WHEN THEN nothing is said
    assert not _notes(tmp_path, RIGHT[title])
