"""A round whose results a backward pass outside of it goes through is no graph: its replays lead no gradients back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run, with_rounds

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

IN_PLACE = """
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)
kept = []
args = (torch.randn(16, 8, device=device), torch.randint(0, 4, (16,), device=device))
def f(x, y):
    for epoch in range(3):
        logp = torch.log_softmax(net(x), -1)
        loss = F.nll_loss(logp, y) + 0.01 * logp.pow(2).mean()
        kl = (logp.exp() * logp).sum(-1).mean().item()
        kept.append(kl)
        if kl < 0.2:
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.detach()
"""
BY_ANOTHER = """
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
class Trainer:
    def __init__(self):
        self.opt, self.seen = torch.optim.SGD(net.parameters(), lr=0.1), []
    def apply(self, total):
        self.opt.zero_grad()
        total.backward()
        self.opt.step()
    def f(self, x, y):
        for k in range(3):
            out = net(x)
            loss = F.cross_entropy(out, y)
            error = (out.argmax(-1) != y).float().mean().item()
            self.seen.append(error)
            if error < 0.99:
                return out.detach()
            total = loss / 2
            self.apply(total)
        return out.detach()
args = (torch.randn(16, 8, device=device), torch.randint(0, 4, (16,), device=device))
f = Trainer().f
"""
OF_OTHERS = """
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
w = torch.zeros(4, device=device, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
kept = []
args = (torch.randn(3, 16, 8, device=device),)
def f(xs):
    for x in xs:
        z = torch.log_softmax(net(x), -1)
        top = z.topk(2)[0]
        margin = (top[:, 0] - top[:, 1]).mean()
        kept.append(margin.item())
        if kept[-1] > 9.0:
            break
    margin = (w - 1).pow(2).sum()
    opt.zero_grad()
    margin.backward()
    opt.step()
    return margin.detach()
"""


@pytest.mark.parametrize("text", [IN_PLACE, BY_ANOTHER])
def test_what_a_backward_pass_beside_it_goes_through_is_no_round(text: str, tmp_path: Path) -> None:
    """GIVEN a loop that tests what it has read between a loss and its backward pass, so that none came to that.

    WHEN it is rewritten THEN no round without the backward pass is shown as a graph.
    """
    names = run(text, tmp_path)

    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix

    assert not fix.alone, fix
    assert fix.pieces or fix.instead


def test_a_backward_pass_of_something_else_takes_no_round_away(tmp_path: Path) -> None:
    """GIVEN rounds with gradients of their own that nobody asks for, and a name that is another loss behind them.

    WHEN it is rewritten THEN the round is a graph.
    """
    with_rounds(OF_OTHERS, ["margin = f_round(x)"], tmp_path)
