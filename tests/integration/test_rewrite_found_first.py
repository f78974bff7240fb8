"""Fixes that take numbers to the device which the host finds before a launch: lists of them, one for a whole loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
NET = """
net = nn.Linear(6, 2).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
args = (torch.randn(4, 6, device=device), torch.randn(4, 2, device=device))
"""
WHOLE = {
    "weights of two losses that the last losses decide": (
        """
last, before = [1.0, 1.0], [1.0, 1.0]
def f(x, y):
    global last, before
    exps = [math.exp(a / b) for a, b in zip(last, before)]
    w = [2 * e / sum(exps) for e in exps]
    one, two = F.mse_loss(net(x), y), net(x).abs().mean()
    loss = w[0] * one + w[1] * two
    opt.zero_grad()
    loss.backward()
    opt.step()
    before, last = last, [one.item(), two.item()]
    return loss.detach()
""",
        ["w_in.copy_(torch.as_tensor(w))", "loss = w_in[0] * one + w_in[1] * two"],
    ),
    "one number for all rounds of a loop, beside a guard that clears gradients and what a patience counts": (
        """
best, bad, t = float("inf"), 0, 0
def f(x, y):
    global best, bad, t
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    t += 1
    sigma = 0.01 / (1 + t) ** 0.55
    for p in net.parameters():
        if torch.isnan(p.grad).any():
            p.grad.zero_()
        p.grad += sigma * torch.ones_like(p.grad)
    opt.step()
    value = loss.item()
    if value < best:
        best, bad = value, 0
    else:
        bad += 1
    return loss.detach()
""",
        [
            "sigma_in.fill_(sigma)",
            "p.grad.masked_fill_(torch.isnan(p.grad).any(), 0)",
            "p.grad += sigma_in * torch.ones_like(p.grad)",
            "global bad, best",
        ],
    ),
    "a branch of the device's that bounds in place": (
        """
state = torch.zeros(4, 2, device=device)
def f(x, y):
    state.add_(net(x).detach())
    if state.abs().max() > 0.7:
        state.clamp_(-0.5, max=0.5)
    return state * y
""",
        ["state.copy_(torch.where(state.abs().max() > 0.7, state.clamp(-0.5, max=0.5), state))"],
    ),
}


@pytest.mark.parametrize("title", WHOLE)
def test_what_the_host_finds_first_is_given_in_tensors(title: str, tmp_path: Path) -> None:
    # GIVEN a step whose numbers the host finds first WHEN it is rewritten
    text, lines = WHOLE[title]
    fix = rewritten(NET + text, tmp_path)
    # THEN that is whole, over ten steps too, and the lines are these
    assert fix.complete, str(fix)
    assert [line for line in lines if line not in lines_of(fix)] == [], str(fix)
