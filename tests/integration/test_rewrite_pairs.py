"""Pairs of places where a mask holds, `a, b = torch.where(c)`, that only pick: the mask picks the same."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HEAD = """
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device))
def f(x, labels):
    dist = torch.cdist(net(x), net(x) + 1)
    same = labels[:, None] == labels[None, :]
"""
TAIL = """\
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""
# what is whole, with what no line has any more
WHOLE = {
    "of a mask with a name": (
        "    a, b = torch.nonzero(same, as_tuple=True)\n    pos = dist[a, b]\n    loss = pos.mean()\n",
        "pos = dist",
    ),
    "of a condition, picked twice": (
        "    i, j = torch.where(dist > 1.5)\n    loss = dist[i, j].square().sum() + (dist * 2)[i, j].mean()\n",
        "there = dist > 1.5",
    ),
    "of a mask that is written after it": (
        "    a, b = same.nonzero(as_tuple=True)\n    same.fill_diagonal_(False)\n    loss = dist[a, b].mean()\n",
        "there = same.clone()",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_pairs_that_only_pick_become_the_mask(name: str, fixed: Fixed) -> None:
    # GIVEN both places of what holds, which only pick what a loss sums or averages WHEN rewritten
    body, line = WHOLE[name]
    fix = fixed(HEAD + body + TAIL)
    # THEN it is whole, and the mask picks
    assert fix.complete, fix
    assert line in lines_of(fix), fix


def test_pairs_that_are_read_alone_stay(fixed: Fixed) -> None:
    # GIVEN such places, of which one is read by itself WHEN rewritten THEN they stay
    fix = fixed(f"{HEAD}    a, b = torch.where(same)\n    loss = dist[a, b].mean() + x[a].mean()\n{TAIL}")
    assert not fix.complete
    assert "torch.where(same)" not in "".join(line for line in fix.diff.splitlines() if line.startswith("-")), fix
