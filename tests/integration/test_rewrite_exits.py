"""Fixes of steps that end the program where a loss is not finite, as training engines do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

STEP = """\
import sys
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))

def f(x, y):
    loss = F.cross_entropy(net(x), y)
    value = loss.item()
    if not math.isfinite(value):
        sys.exit(1)
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        norm = p.grad.norm()
        if norm > 0.5:
            p.grad.mul_(0.5 / norm)
    opt.step()
    losses.append(value)
"""


def test_an_exit_in_a_trial_with_other_inputs_ends_no_diagnosis(tmp_path: Path) -> None:
    # GIVEN a step that exits on a loss that is not finite, as trials with other inputs bring it WHEN it is rewritten
    fix = rewritten(STEP, tmp_path)
    # THEN it is whole, and exits behind the launch
    assert fix.complete, fix
    assert any("after_f(loss)" in line for line in lines_of(fix)), fix
