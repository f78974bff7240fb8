"""A step that the device leaves out stays in the graph: with SGD's momentum, and with gradients scaled by a branch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
GUARDED = """
net = nn.Linear(4, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, OPTIONS)
losses = []
args = (torch.randn(5, 4, device=device), torch.randn(5, 2, device=device))
def feed(i):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i))
    x[0, 0] = math.nan if i in (0, 1, 4, 6) else 1.0
    return x.to(device), torch.ones(5, 2, device=device)
def f(x, y):
    loss = F.mse_loss(net(x), y)
    if torch.isnan(loss):
        return None
    opt.zero_grad()
    loss.backward()
    SCALED
    opt.step()
    losses.append(loss.item())
    return loss.detach()
"""
SCALED = {
    "not at all": "pass",
    "by a branch": """norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
    if norm.item() > 1.0:
        for p in net.parameters():
            p.grad.mul_(1.0 / norm)""",
    "by a branch, where there are any": """norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
    if norm > 1.0:
        for p in net.parameters():
            p.grad.div_(norm)""",
    "in any case": """for p in net.parameters():
        if p.grad is not None:
            p.grad.clamp_(-0.1, 0.1)""",
}


@pytest.mark.parametrize("how", SCALED)
def test_the_step_is_in_the_graph(how: str, tmp_path: Path) -> None:
    # GIVEN a step that is left out where its loss is no number, the first one too WHEN rewritten
    text = GUARDED.replace("OPTIONS", "momentum=0.9").replace("SCALED", SCALED[how])
    fix = rewritten(text, tmp_path)
    # THEN the device leaves it out, with a momentum that is there before, and gives the original's numbers in ten steps
    assert fix.complete, fix
    lines = lines_of(fix)
    assert "opt.found_inf = (torch.isnan(loss)).float()" in lines, fix
    assert any(
        line.endswith('["momentum_buffer"] = torch.zeros_like(p)') or "zeros_like(p_2)" in line for line in lines
    )
    behind = "\n".join(line for line in fix.diff.partition("+def after_f")[2].splitlines() if line[:1] != "-")
    assert "opt.step()" not in behind
    assert ".grad." not in behind


def test_a_momentum_that_begins_otherwise_is_left_to_the_host(tmp_path: Path) -> None:
    # GIVEN a first step that takes the whole gradient, and others a half WHEN rewritten THEN nothing stands for it
    text = GUARDED.replace("OPTIONS", "momentum=0.9, dampening=0.5").replace("SCALED", "pass")
    assert "found_inf" not in rewritten(text, tmp_path).diff


def test_no_momentum_needs_no_more_lines(tmp_path: Path) -> None:
    fix = rewritten(GUARDED.replace("OPTIONS", "weight_decay=0.1").replace("SCALED", "pass"), tmp_path)
    assert fix.complete, fix
    assert "momentum_buffer" not in fix.diff
