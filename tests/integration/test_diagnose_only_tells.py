"""A branch of the host's that only tells goes behind the launch, also where it gives a number a name of its own."""

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
LOGS = """import torch, paramgraph_kit as pgk
device = pgk.device()
w = torch.ones(4, device=device)
n = 0
def step(x):
    global n
    n += 1
    loss = (w * x).sum()
    shown = loss * 2
    if n % 2 == 0:
        shown = loss.detach() * 3
        LINE
    return RESULT
"""


def _words(folder: Path, result: str) -> str:
    text = LOGS.replace("shown = loss * 2\n    ", "") if result == "loss" else LOGS
    text = text.replace("LINE", "print(shown.item())").replace("RESULT", result)
    return str(pgk.diagnose(load(text, folder / "logs.py")["step"], torch.ones(4, device=pgk.device())))


def test_a_name_of_its_own_is_chosen_by_no_tensor(tmp_path: Path) -> None:
    """GIVEN a branch by a count that gives a name what it then prints, and nothing else reads
    WHEN the step is diagnosed
    THEN it goes behind the launch.
    """
    told = _words(tmp_path, "loss")
    assert "torch.where" not in told
    assert "behind each launch" in told


def test_a_name_that_the_step_returns_is(tmp_path: Path) -> None:
    """GIVEN the same where the step returns that
    WHEN it is diagnosed
    THEN a tensor chooses.
    """
    assert "torch.where" in _words(tmp_path, "shown")
