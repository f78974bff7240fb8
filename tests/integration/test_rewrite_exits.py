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
    assert any(line.startswith("def after_f(") for line in lines_of(fix)), fix


ADDED = """\
class Accumulator:
    def __init__(self, net):
        self.net, self.micro = net, 0
        self.opt = torch.optim.SGD(net.parameters(), lr=0.2)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
    def step(self, x, y):
        {first}
        loss = F.cross_entropy(self.net(x), y) / 4
        if not torch.isfinite(loss):
            return loss.detach()
        loss.backward()
        {last}
        return loss.detach()
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))
trainer = Accumulator(nn.Linear(4, 3).to(device))
def f(x, y):
    return trainer.step(x, y)
"""
LAST = """self.micro += 1
        if self.micro % 4 == 0:
            self.opt.step()
            self.opt.zero_grad(set_to_none=False)"""


def test_a_way_out_before_gradients_that_add_up_does_not_go_behind_them(tmp_path: Path) -> None:
    # GIVEN gradients of several batches, zeroed each few of them, without those of a batch whose loss is not finite
    fix = rewritten(ADDED.format(first="pass", last=LAST), tmp_path)
    # WHEN it is rewritten THEN no diff has a launch add the gradients of such a batch, which all later ones would keep
    assert not fix.complete, fix
    assert not any("def after_" in line for line in lines_of(fix)), fix


def test_a_way_out_before_gradients_that_each_step_zeroes_goes_behind_them(tmp_path: Path) -> None:
    # GIVEN the same where each step zeroes the gradients first WHEN it is rewritten
    fix = rewritten(ADDED.format(first="self.opt.zero_grad(set_to_none=False)", last="self.opt.step()"), tmp_path)
    # THEN the way out is taken behind the launch, and the device leaves out the step
    assert fix.complete, fix
    assert any("found_inf" in line for line in lines_of(fix)), fix
