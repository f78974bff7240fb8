"""Numbers of which one decides a size, and another is frozen at the same line."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
PROGRAM = """import torch, paramgraph_kit as pgk
from torch import nn
device = pgk.device()
net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
rates = [0.1 - 0.01 * k for k in range(9)]
def f(x, k, part):
    for group in opt.param_groups: group["lr"] = RATE
    opt.zero_grad()
    net(x).square().mean().backward()
    if part < 1:
        for p in net[1].parameters(): p.grad = None
    opt.step()
inputs = (torch.ones(4, 6, device=device), 0, 0)
"""


@pytest.mark.parametrize(("rate", "is_told"), [("rates[k]", True), ("rates[0]", False)])
def test_a_rate_that_moves_is_told_beside_a_size_of_its_line(rate: str, is_told: bool, tmp_path: Path) -> None:
    # GIVEN a step whose rate follows one number, and whose parameters that learn follow another
    names = load(PROGRAM.replace("RATE", rate), tmp_path / "program.py")
    # WHEN it is diagnosed THEN the size is told, and the rate where it moves
    diagnosis = pgk.diagnose(names["f"], *names["inputs"])
    assert {"size-frozen", "branch-frozen"} & {*diagnosis.codes}, str(diagnosis)
    assert ("learning-rate-frozen" in diagnosis.codes) is is_told, str(diagnosis)
