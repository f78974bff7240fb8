"""Words for a choice between two numbers by a flag of the host's: where a call takes a number, and with a new name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

FILLED = """\
import random
def part(x, flip, chosen_in=None):
    return x * torch.full((2,), 0.1 if flip else 0.9, device=device)
def step(x):
    flip = random.random() < 1e-9
    return part(x, flip)
args = (torch.ones(2, device=device),)
"""
FACTOR = FILLED.replace("torch.full((2,), 0.1 if flip else 0.9, device=device)", "(0.1 if flip else 0.9)")
ONCE = "once `chosen_in_2 = torch.zeros((), dtype=torch.bool, device=device)`, before each launch `chosen_in_2.fill_("
CALLS = "torch.full((2,), 0.1, device=device), torch.full((2,), 0.9, device=device)"


@pytest.mark.parametrize(
    ("text", "here"),
    [
        (
            FILLED,
            f"`torch.where(chosen_in_2, {CALLS})` for `torch.full((2,), 0.1 if flip else 0.9, device=device)`",
        ),
        (FACTOR, "here `torch.where(chosen_in_2, 0.1, 0.9)`"),
    ],
    ids=["filled", "a factor"],
)
def test_a_number_that_a_flag_chooses_has_words_that_run_in_a_capture(text: str, here: str, tmp_path: Path) -> None:
    # GIVEN a number that a draw chooses, in a step that has the flag's usual name already
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN it is diagnosed
    with quiet():
        found = " ".join(str(pgk.diagnose(names["step"], *names["args"])).split())
    # THEN the flag has a name of its own, and no call that takes a number is given a tensor
    assert ONCE in found, found
    assert here in found, found
