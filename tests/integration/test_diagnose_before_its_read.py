"""A number that a line computes with before it reads the device is frozen, whatever else the line does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
BANDIT = """import math, random
import torch, paramgraph_kit as pgk
device = pgk.device()
class Bandit:
    def __init__(self):
        self.t, self.rate = 0, 0.5
        self.best = torch.zeros((), device=device)
    def select(self, mean, width):
        alpha = NUMBER
        return int(torch.argmax(mean + alpha * width))
    def update(self, score):
        self.best += score
        self.t += 1
    def play(self, mean, width):
        self.update(self.select(mean, width))
        return self.best.clone()
    def read(self, mean, width):
        score = mean.max().item()
        return (mean + score * width).sum().item() * width
bandit = Bandit()
"""
MEAN, WIDTH = torch.tensor([9.0, 0.0, 0.0]), torch.tensor([0.5, 0.4, 0.3])  # always the same is picked


def _asked(folder: Path, number: str, method: str = "play") -> pgk.Diagnosis:
    bandit = load(BANDIT.replace("NUMBER", number), folder / "bandit.py")["bandit"]
    return pgk.diagnose(getattr(bandit, method), MEAN.to(pgk.device()), WIDTH.to(pgk.device()))


def _told(found: pgk.Diagnosis) -> set[tuple[str, int]]:
    return {(each.code, each.frame.line) for each in found.failures if each.frame is not None}


@pytest.mark.parametrize(
    ("number", "code"),
    [("1.0 / math.sqrt(self.t + 1)", "scalar-frozen"), ("random.random()", "host-random")],
)
def test_the_number_is_told_beside_the_read(tmp_path: Path, number: str, code: str) -> None:
    """GIVEN a line that reads what it computes of a number that the host counts, or draws
    WHEN the step is diagnosed
    THEN both are told.
    """
    assert {("sync-item", 10), (code, 10)} <= _told(_asked(tmp_path, number))


def test_the_count_is_not_said_to_be_read_by_none(tmp_path: Path) -> None:
    """GIVEN a count in one method, and another that computes with it and is called before that
    WHEN the step is diagnosed
    THEN what it computes belongs before each launch, and the count behind.
    """
    told = str(_asked(tmp_path, "1.0 / math.sqrt(self.t + 1)"))
    assert "what the host makes of it at line 9 belongs before each launch" in told
    assert "after each launch do `self.t += 1`" in told


def test_what_follows_from_a_read_is_no_other_problem(tmp_path: Path) -> None:
    """GIVEN a constant in that line, and lines that compute with what they, or others, have read
    WHEN they are diagnosed
    THEN no number is told as frozen.
    """
    assert not any(code == "scalar-frozen" for code, _ in _told(_asked(tmp_path, "self.rate")))
    assert not any(code == "scalar-frozen" for code, _ in _told(_asked(tmp_path, "1.0", "read")))
