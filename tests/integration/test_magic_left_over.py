"""Cells whose own run has left parts of results: their graphs do not draw the doctor's calls to the default stream."""

from __future__ import annotations

import pytest
import torch

from tests.integration.shells import Session

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

SETUP = """
net = torch.nn.Linear(8, 1).to(pgk.device())
aim = torch.ones(4, device=pgk.device())
"""
CELL = """%%paramgraph diagnose -o found
net.zero_grad()
output = net(x).view(-1)
error = torch.nn.functional.mse_loss(output, aim)
error.backward()
mean = output.mean().item()
"""


def test_a_view_that_a_cell_has_left_is_no_problem_of_the_cells(session: Session) -> None:
    # GIVEN a cell that keeps a view of what its model gave, and runs its backward pass
    session.good(SETUP)
    # WHEN it is run and diagnosed
    session.good(CELL)
    # THEN it has the one problem that it has, and its names have what they had
    assert session["found"].codes == ("sync-item",)
    assert any("output" in note and "detached" in note for note in session["found"].notes)
    assert session["output"].shape == (4,)
    assert not session["output"].requires_grad
    assert session["output"].mean().item() == pytest.approx(session["mean"])
