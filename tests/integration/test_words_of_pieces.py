"""A tensor and a piece of it have no ``torch.where`` of both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PIECE = """
def f(x):
    new = x * 2
    if new[0].item() == 2:
        new = PIECE
    return new.sum()
args = (torch.ones(4, device=device),)
"""


@pytest.mark.parametrize(("piece", "is_short"), [("new[1:]", True), ("new[:-1]", True), ("new + 1", False)])
def test_a_branch_that_cuts_is_no_choice_of_elements(piece: str, is_short: bool, tmp_path: Path) -> None:
    # GIVEN a step that takes off the first element where the device says so, or adds to all
    names = run(PIECE.replace("PIECE", piece), tmp_path)

    # WHEN it is diagnosed
    said = [parts(each.fix)[1] for each in pgk.diagnose(names["f"], *names["args"])]

    # THEN a choice of both ways is told where they are of one size alone
    assert any("torch.where(new[0] == 2" in each for each in said) is not is_short, said
