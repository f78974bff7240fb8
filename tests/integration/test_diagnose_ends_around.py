"""Epochs that a value of the device ends: the rounds within each are as many as ever, and are not told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

EPOCHS = """
import numpy as np

class Trainer:
    def __init__(self):
        self.w = torch.nn.Parameter(torch.ones(2, device=device))
        self.optimizer = torch.optim.SGD([self.w], lr=0.1)
        self.calls = 0

    def update(self, x):
        self.calls += 1
        rows = np.arange(4)
        for epoch in range(4):
            np.random.shuffle(rows)
            for start in range(0, 4, {step}):
                loss = (x[rows[start:start + 2]] * self.w).sum()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if loss < 1.5:
                break
        return loss.detach()


step = Trainer().update
"""


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("2 if x.shape[0] else 1", []),  # two rounds in each epoch
        ("2 - self.calls % 2", ["for start in range(0, 4, 2 - self.calls % 2):"]),
    ],
)
def test_epochs_that_end_early_are_told_where_they_end(tmp_path: Path, by: str, told: list[str]) -> None:
    # GIVEN epochs of rounds that a loss ends, in another epoch of each call
    np.random.seed(0)
    torch.manual_seed(0)
    step = run(EPOCHS.replace("{step}", by), tmp_path)["step"]
    # WHEN diagnosed THEN their end is told, and the rounds only where they are not as many in each epoch
    found = pgk.diagnose(step, (torch.randn(4, 2) + 1).to(pgk.device())).failures
    lines = [f.frame.text for f in found if f.frame is not None]
    assert "if loss < 1.5:" in lines
    assert [line for line in lines if line.startswith("for start")] == told, lines
