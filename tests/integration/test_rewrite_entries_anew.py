"""An entry of a list or a dictionary that each step gives something new is one tensor, as an attribute is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramgraph_kit.rewrite.proving.closeness import RETURNS, differences
from paramgraph_kit.rewrite.proving.exchanged import ExchangedError
from paramgraph_kit.rewrite.proving.proof import Prover
from tests.integration.rewritten import rewritten, run

PREVIOUS = """
state = BEGUN
@torch.no_grad()
def f(x):
    d = x - state[0]
    state[0] = x.clone()
    return d * 2
args = (torch.randn(2, 4).to(device),)
"""
HIGHEST = """
class Low:
    def __init__(self):
        self.high = [torch.full((2, 4), 1e9).to(device)]
low = Low()
@torch.no_grad()
def f(x):
    NEW
    return x / low.high[0]
args = (torch.randn(2, 4).to(device),)
"""
EXCHANGED = (
    "low.high[0] = torch.maximum(low.high[0], x)",
    "low.high.append(torch.maximum(low.high.pop(), x))",
    "low.high = [torch.maximum(each, x) for each in low.high]",
    "low.high = (torch.maximum(low.high[0], x),)",
)
IN_PLACE = "low.high[0].copy_(torch.maximum(low.high[0], x))"


@pytest.mark.parametrize("begun", [pytest.param("[BEGUN]", marks=pytest.mark.sweep), "{0: BEGUN}"])
def test_an_entry_that_is_given_a_new_tensor_is_written_in_place(begun: str, tmp_path: Path) -> None:
    # GIVEN a step that reads an entry and then gives it a new tensor, of other sizes where the inputs have others
    # WHEN fixed
    fix = rewritten(PREVIOUS.replace("BEGUN", begun.replace("BEGUN", "torch.zeros(2, 4).to(device)")), tmp_path)
    # THEN the entry is written in place, and a batch of another size is refused, where a plain copy would repeat it
    assert fix.complete, fix
    assert "state[0].copy_(x.clone().view_as(state[0]))" in fix.diff


@pytest.mark.parametrize("line", EXCHANGED)
def test_a_list_that_a_step_exchanges_is_no_proof(line: str, tmp_path: Path) -> None:
    # GIVEN a tensor of a list that each step exchanges for one with the same numbers, as nothing exceeds it
    names = run(HIGHEST.replace("NEW", line), tmp_path)
    prover = Prover(names["f"], names["args"], {})
    prover.first()
    # WHEN it is captured as a proof has it THEN equal numbers are none
    with pytest.raises(ExchangedError, match="is another tensor behind each step"):
        prover.captured()


def test_a_list_that_is_written_in_place_is_one(tmp_path: Path) -> None:
    # GIVEN the same written in place
    names = run(HIGHEST.replace("NEW", IN_PLACE), tmp_path)
    prover = Prover(names["f"], names["args"], {})
    eager = prover.first()
    # WHEN it is captured THEN it is seen to the end, with eager's results
    assert not differences({RETURNS: eager[RETURNS]}, {RETURNS: prover.captured()[RETURNS]})
