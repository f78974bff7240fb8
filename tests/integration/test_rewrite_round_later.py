"""Lines around a graph that do, at a count or a value that no trial comes to, what the graph does not see."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paramgraph_kit.rewrite.memory_moved import bound_by_text, memory_moved
from tests.integration.rewritten import launched

TRAIN = """\
net = nn.Linear(3, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
ema = [p.detach().clone() for p in net.parameters()]
args = (torch.randn(6, 3, device=device), torch.zeros(6, 1, device=device))
k = 0
def f(x, y):
    global k
    k += 1
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema, net.parameters()):
            e.mul_(0.9).add_(p, alpha=0.1)
        if k % 8 == 0:
            for e, p in zip(ema, net.parameters()):
                {exchange}
    return loss.item()
"""

BY_VALUE = """\
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
start = [p.detach().clone() for p in net.parameters()]
args = (torch.randn(5, 3, device=device),)
@torch.no_grad()
def f(x):
    y = net(x)
    v = y.abs().max().item()
    for p in net.parameters():
        p.mul_(1.02)
    if v > 1.5:
        for p, s in zip(net.parameters(), start):
            {again}
    return v
"""
REPLACED = """\
import copy
class Agent:
    def __init__(self):
        self.q = nn.Linear(3, 2).to(device)
        self.t = nn.Linear(3, 2).to(device)
        self.synced = 0
    @torch.no_grad()
    def step(self, x):
        d = (self.q(x) - self.t(x)).abs().mean()
        self.q.weight.mul_(0.99)
        gap = d.item()
        if gap > 2.0:
            self.t = copy.deepcopy(self.q)
            self.synced += 1
        return gap
f = Agent().step
args = (torch.randn(5, 3, device=device),)
"""
BY_TEXT = REPLACED.replace(
    "self.t = copy.deepcopy(self.q)\n            self.s",
    'setattr(self, "t", copy.deepcopy(self.q))\n            self.s',
)


def test_a_part_whose_parameters_get_other_memory_at_times_is_none(tmp_path: Path) -> None:
    """Its graph would train the memory of before, from the eighth step on."""
    # GIVEN a step that exchanges what its parameters are made of in each eighth call
    text = TRAIN.format(exchange="p.data, e.data = e.data.clone(), p.data.clone()")
    # WHEN THEN no part with its forward and backward pass is shown as tried, or it is right
    assert not launched(text, tmp_path).complete


def test_a_part_whose_parameters_are_written_in_place_at_times_is_one(tmp_path: Path) -> None:
    """Then it reads what is there."""
    # GIVEN the same with copies
    text = TRAIN.format(exchange="old = p.clone(); p.copy_(e); e.copy_(old)")
    # WHEN
    fix = launched(text, tmp_path)
    # THEN the part stays
    assert fix.alone or fix.complete, fix


@pytest.mark.parametrize("text", [BY_VALUE.format(again="p.data = s.clone()"), REPLACED, BY_TEXT])
def test_no_graph_goes_on_with_a_model_of_before(text: str, tmp_path: Path) -> None:
    """What is around its launch would give the parameters other memory, where a value says so."""
    # GIVEN a step that six steps do not lead there WHEN
    fix = launched(text, tmp_path)
    # THEN nothing that was moved around a launch is shown as whole, and a module is not written like a tensor
    assert not fix.complete, fix
    assert "self.t.copy_" not in fix.diff


def test_parameters_that_are_written_around_a_launch_are_seen(tmp_path: Path) -> None:
    """In place they stay what the graph reads."""
    # GIVEN / WHEN
    fix = launched(BY_VALUE.format(again="p.copy_(s)"), tmp_path)
    # THEN
    assert fix.complete or fix.alone, fix


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p.data = s", "data"),
        ("net.weight = nn.Parameter(w)", "weight"),
        ("net.load_state_dict(saved, assign=True)", "load_state_dict"),
        ("self.w.set_(new)", "w"),
        ("p.data.copy_(s); p.data -= s; self.data = x; net.load_state_dict(saved); self.weight = 0.5", ""),
    ],
)
def test_lines_that_move_memory_are_known(text: str, name: str) -> None:
    # GIVEN / WHEN / THEN
    assert memory_moved(ast.parse(text).body) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('setattr(self, "t", new)', "t"),
        ('net.register_buffer("mask", new)', "mask"),
        ('vars(self)["w"] = new', "w"),
        ('self.__dict__["w"] = new', "w"),
        ('state["w"] = new', ""),
        ("setattr(self, name, new)", ""),
        ('print("w", new)', ""),
    ],
)
def test_attributes_that_are_bound_by_a_text_are_known(text: str, name: str) -> None:
    # GIVEN / WHEN / THEN
    assert "".join(filter(None, map(bound_by_text, ast.walk(ast.parse(text))))) == name
