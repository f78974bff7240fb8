"""Rates that a loop sets on one optimizer, where the step has another: each is told of its own alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

PROGRAM = """
net_a, net_b = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
opt_a = torch.optim.SGD(net_a.parameters(), lr=1e-3)
opt_b = torch.optim.SGD(net_b.parameters(), lr=1e-3)
alias = opt_a
def set_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
def step_a(x):
    opt_a.zero_grad()
    net_a(x).pow(2).mean().backward()
    opt_a.step()
def main():
    logs = {}
    for i in range(6):
        step_a(torch.randn(2, 4, device=device))
        logs["lr"] = 1e-3 / (i + 1)
        LINES
"""
OTHER = """set_rate(opt_b, logs["lr"])
        opt_b.param_groups[0]["lr"] *= 0.1
        for group in opt_b.param_groups:
            group["lr"] *= 0.1"""
ITS = {"a helper": "set_rate(opt_a, 1e-4)", "another name": 'alias.param_groups[0]["lr"] *= 0.1'}


def codes(lines: str, path: Path) -> tuple[str, ...]:
    names = load(PRELUDE + PROGRAM.replace("LINES", lines), path)
    return pgk.diagnose(names["step_a"], torch.ones(2, 4).to(names["device"])).codes


def test_a_rate_of_another_optimizer_is_not_blamed_on_the_step(tmp_path: Path) -> None:
    # GIVEN a loop that sets rates of an optimizer that the step has not WHEN the step is diagnosed THEN nothing is told
    assert codes(OTHER, tmp_path / "program.py") == ()


@pytest.mark.parametrize("line", ITS.values(), ids=ITS)
def test_a_rate_of_its_optimizer_is_told_by_any_name(tmp_path: Path, line: str) -> None:
    # GIVEN the same of the step's own, by a helper or another name WHEN diagnosed THEN its rate is told as frozen
    assert codes(line, tmp_path / "program.py") == ("learning-rate-frozen",)
