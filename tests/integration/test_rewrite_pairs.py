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


# Neighbours whose messages are added up, with a line that stands there then.
NEAR = {
    "ends, behind a question whether there are any": (
        """
    i, j = torch.where((r < 0.5) & (r > 0))
    out = torch.zeros_like(pos)
    if i.numel() > 0:
        step = d[i, j] / (r[i, j, None] + 0.1)
        out.index_add_(0, i, step)
    return out
""",
        "out.index_add_(0, i, torch.where(there[:, None], step, 0))",
    ),
    "ends of a mask that is written after it": (
        """
    near = r < 0.5
    i, j = near.nonzero(as_tuple=True)
    near.fill_(True)
    return torch.zeros(len(pos), device=pos.device).scatter_add(0, i, r[i, j]), near
""",
        "there = near.flatten().clone()",
    ),
    "an index of both ends": (
        """
    edges = (r < 0.5).nonzero().t()
    src, dst = edges
    return torch.zeros_like(pos).index_add_(0, dst, pos[src] * 2)
""",
        "edges = torch.where(there, edges, 0)",
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_neighbours_are_all_pairs_of_which_those_far_add_zeros(name: str, fixed: Fixed) -> None:
    # GIVEN neighbours that a radius lists, whose messages are added up
    body, line = NEAR[name]
    head = "def f(pos):\n    d = pos[:, None] - pos[None]\n    r = d.norm(dim=-1)"
    # WHEN a fix is asked for
    fix = fixed("args = (torch.rand(9, 2, device=device),)\n" + head + body)
    # THEN all pairs are computed, and those that are far add nothing
    assert fix.complete, fix
    assert line in {each.strip() for each in lines_of(fix)}, fix


def test_what_is_drawn_only_where_there_are_neighbours_is_left_there(fixed: Fixed) -> None:
    # GIVEN neighbours that are moved by what is drawn where there are any WHEN a fix is asked for
    fix = fixed("""
args = (torch.rand(9, 2, device=device),)
def f(pos):
    d = pos[:, None] - pos[None]
    r = d.norm(dim=-1)
    i, j = torch.where((r < 0.5) & (r > 0))
    out = torch.zeros_like(pos)
    if i.numel() > 0:
        noise = torch.randn(2, device=pos.device)
        out.index_add_(0, i, d[i, j] * noise)
    return out
""")
    # THEN it is not drawn in all steps, where later numbers would be others
    assert not any(line.startswith("there = ") for line in map(str.strip, lines_of(fix))), fix
