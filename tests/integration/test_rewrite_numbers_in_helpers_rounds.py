"""A number of an object's that a helper reads in each round of its loop comes in a tensor, as the ones around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

LEAPS = """\
class Chain:
    def __init__(self):
        self.q, self.eps, self.rates = torch.randn(5, device=device), 0.3, []
    def leap(self, q, p, x):
        p = p - 0.5 * self.eps * (q - x)
        for i in range(4):
            q = q + self.eps * p
            if i < 3:
                p = p - self.eps * (q - x)
        return q, p - 0.5 * self.eps * (q - x)
    def step(self, x):
        q, p = self.leap(self.q, torch.ones_like(self.q), x)
        rate = torch.exp(-0.5 * p.dot(p)).item()
        self.rates.append(rate)
        self.eps *= 1.1 if rate > 0.2 else 0.9
        self.q.copy_(q)
        return q.sum()
chain = Chain()
args = (torch.randn(5, device=device),)
"""


def test_a_number_that_rounds_of_a_helper_read_is_filled_before_each_launch(tmp_path: Path) -> None:
    # GIVEN a step size that moves with what is read, and that a method reads in each round of its loop
    names = run(LEAPS, tmp_path)
    # WHEN a fix is asked for
    found: Any = pgk.diagnose(names["chain"].step, *names["args"], fix=True)
    # THEN all rounds read a tensor, and one graph has all of the step but what is decided by what it gives
    assert found.fix.complete, found
    assert "eps_in.fill_(self.eps)" in found.fix.diff, found
    assert "+            q = q + eps_in * p" in found.fix.diff, found
