"""Fixes of what stands elsewhere: in another cell of the notebook, or in another file of the user's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import paramgraph_kit as pgk

if TYPE_CHECKING:
    from tests.integration.shells import Session

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
BEGIN = """import torch, paramgraph_kit as pgk
from torch import nn
import torch.nn.functional as F
device = pgk.device()
x, y = torch.randn(16, 8, device=device), torch.randn(16, 1, device=device)
losses = []"""
MADE = """net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr={rate})"""
BODY = """opt.zero_grad()
loss = F.mse_loss(net(x), y)
loss.backward()
opt.step()
"""
STEP = "def step(x, y):\n" + "".join(f"    {line}\n" for line in BODY.splitlines()) + "    losses.append(loss.item())"


@pytest.mark.parametrize("told", ["function", "cell"])
def test_an_optimizer_of_another_cell_is_mended_there(told: str, session: Session) -> None:
    # GIVEN a notebook with the optimizer in a cell of its own, which has been changed and run again
    session.good(BEGIN)
    session.good(MADE.format(rate="1e-2"))
    session.good(STEP)
    session.good(MADE.format(rate="3e-3"))
    # WHEN the story of a step is told, of a function or of a cell
    if told == "function":
        session.good("story = pgk.story(step, x, y, say=None)")
        story = session["story"]
        text = str(story)
        assert story.complete, text
    else:
        text = session.good(f"%%paramgraph story\n{BODY}").out
    # THEN the whole step is in the graph, and the diff says so at the line of the cell that ran last
    assert "+opt = torch.optim.AdamW(net.parameters(), lr=3e-3, capturable=True)" in text
    assert "lr=1e-2" not in text
    assert "operations of a step are in the graph" not in text
    assert "pgk.parameterize(step, state=(net, opt" in text


def test_an_optimizer_of_another_file_is_mended_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a trainer in one file, and what it trains with in another
    (tmp_path / "trainer_of_mine.py").write_text("""
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.losses = model, optimizer, []

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
""")
    (tmp_path / "train_of_mine.py").write_text("""
import paramgraph_kit as pgk, torch
from trainer_of_mine import Trainer
model = torch.nn.Linear(4, 4).to(pgk.device())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = Trainer(model, optimizer)
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    pgk.device()
    trainer = importlib.import_module("train_of_mine").trainer
    # WHEN the story of its step is told
    story = pgk.story(trainer.step, torch.randn(2, 4, device=pgk.device()), say=None)
    # THEN the other file's line is mended
    assert story.complete, str(story)
    assert "train_of_mine.py (not written)" in str(story)
    assert "+optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)" in str(story)
