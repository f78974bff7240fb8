"""An optimizer that is made in a step, of a rate that is a tensor of the device, which its constructor checks."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

INSIDE = """
net = nn.Linear(4, 2).to(device)
args = (torch.ones(3, 4, device=device),)
rate = torch.full((), 0.1, device=device)
def f(x):
    opt = torch.optim.AdamW(net.parameters(), lr=rate, capturable=True)
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
"""
MADE = "    opt = torch.optim.AdamW(net.parameters(), lr=rate, capturable=True)\n"
AHEAD = INSIDE.replace(MADE, "").replace("def f", f"{MADE.strip()}\ndef f")


@pytest.mark.sweep
def test_an_optimizer_that_a_step_makes_is_to_be_made_ahead(tmp_path: Path) -> None:
    # GIVEN a step that makes its optimizer, of a rate that lies on the device WHEN diagnosed
    names = run(INSIDE, tmp_path)
    (found,) = [f for f in pgk.diagnose(names["f"], *names["args"]).failures if f.code == "optimizer-sync"]
    # THEN the words are of where it is made, and not of a closure
    assert f"ahead of what is captured: do `{MADE.strip()}` there" in found.fix
    assert "closure" not in found.fix


@pytest.mark.sweep
def test_one_that_is_made_ahead_is_no_problem(tmp_path: Path) -> None:
    # GIVEN the same with the optimizer made so WHEN diagnosed
    names = run(AHEAD, tmp_path)
    # THEN there is no problem
    assert not pgk.diagnose(names["f"], *names["args"]).failures
