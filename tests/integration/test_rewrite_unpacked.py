"""Several tensors that one line exchanges are written in place, each into the one that a graph reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

VERLET = """
class Sim:
    def __init__(self):
        self.x, self.v = torch.randn(6, 3, device=device), torch.zeros(6, 3, device=device)
        self.f, self.energy = self.forces()
    def forces(self):
        d = self.x[:, None] - self.x[None]
        inv = 1.0 / (d.square().sum(-1) + 1.0)
        f = (inv * inv)[..., None] * d
        return f.sum(1), inv.sum()
    def step(self):
        self.v += 0.1 * self.f
        self.x += 0.1 * self.v
        self.f, self.energy = self.forces()
        self.v += 0.1 * self.f
f, args = Sim().step, ()
"""
SWAPPED = """
class Pair:
    def __init__(self):
        self.a, self.b = torch.randn(4, device=device), torch.randn(4, device=device)
    def turned(self, first, second):
        return second, first
    def step(self, x):
        y = self.a * x - self.b
        self.a, self.b = self.turned(self.a, self.b)
        return y
f, args = Pair().step, (torch.randn(4, device=device),)
"""
MADE = """
class Flow:
    def __init__(self):
        self.x = torch.randn(4, device=device)
        self.update()
    def update(self):
        self.f, self.e = -self.x * 2, self.x.square().sum()
    def step(self):
        self.x += 0.1 * self.f
        self.update()
        return self.x - self.f
f, args = Flow().step, ()
"""
GROWS = """
class Grows:
    def __init__(self):
        self.seen, self.n = torch.zeros(2, device=device), torch.zeros((), device=device)
    def more(self, x):
        return torch.cat([self.seen, x[:1]]), self.n + 1
    def step(self, x):
        y = self.seen.sum() + x
        self.seen, self.n = self.more(x)
        return y
f, args = Grows().step, (torch.randn(4, device=device),)
"""


def test_what_a_call_returns_together_is_written_into_both(tmp_path: Path) -> None:
    # GIVEN forces and an energy that a step exchanges at once WHEN rewritten THEN a graph has eager's numbers
    found = rewritten(VERLET, tmp_path)
    assert found.complete, found
    lines = [line.strip() for line in lines_of(found)]
    assert lines[:2] == ["f_now, energy_now = self.forces()", "self.f.copy_(f_now.view_as(self.f))"], found


@pytest.mark.sweep
def test_two_that_trade_places_are_never_written_one_over_the_other(tmp_path: Path) -> None:
    # GIVEN a call that hands back what it was given the other way round WHEN rewritten
    found = rewritten(SWAPPED, tmp_path)
    # THEN copies one after the other are no verified diff
    assert not found.complete or any(".clone()" in line for line in lines_of(found)), found


def test_what_a_new_object_has_made_by_the_same_line_is_made_there(tmp_path: Path) -> None:
    # GIVEN a line that ``__init__`` comes to as well WHEN rewritten
    found = rewritten(MADE, tmp_path)
    # THEN a new object, which has no tensor to write into, gets one
    assert found.complete, found
    line = 'self.e = e_now.clone() if getattr(self, "e", None) is None else self.e.copy_(e_now.view_as(self.e))'
    assert line in [each.strip() for each in lines_of(found)], found


AHEAD = """
class Near:
    def __init__(self):
        self.x, self.v, self.n = torch.randn(8, 3, device=device), torch.zeros(8, 3, device=device), 0
        self.log = []
        self.rebuild()
    def rebuild(self):
        d = (self.x[:, None] - self.x[None]).square().sum(-1)
        self.near = d.topk(3, dim=1, largest=False)[1]
    def forces(self):
        d = self.x[:, None] - self.x[self.near]
        return (d / (d.square().sum(-1, keepdim=True) + 1.0)).sum(1)
    def step(self):
        if self.n % 20 == 0:
            self.rebuild()
        f = self.forces()
        self.v += 0.1 * f
        self.x += 0.1 * self.v
        self.n += 1
        if self.n % 10 == 0:
            self.log.append(f.sum().item())
f, args = Near().step, ()
"""
SIZED = AHEAD.replace("d.topk(3, dim=1, largest=False)[1]", "(d < 1.0).nonzero()").replace(
    "self.x[:, None] - self.x[self.near]", "self.x[:, None] - self.x[self.near[:, 1]][None]"
)


def test_what_a_branch_ahead_exchanges_is_written_in_place_and_the_log_goes_behind(tmp_path: Path) -> None:
    # GIVEN neighbours that a method finds anew each 20 steps, and a log each 10 WHEN rewritten
    found = rewritten(AHEAD, tmp_path)
    # THEN the branch is before the launch, writes where the graph reads, and the whole step is one graph
    assert found.complete, found
    lines = [line.strip() for line in lines_of(found)]
    written = "self.near = near_now.clone() if"
    assert any(line.startswith(written) for line in lines), found
    assert "def before_step(self):  # before each launch" in lines, found


@pytest.mark.sweep
def test_a_list_of_pairs_of_another_size_is_not_written_in_place(tmp_path: Path) -> None:
    # GIVEN pairs whose number the device finds anew WHEN rewritten THEN no whole diff writes them into the old ones
    found = rewritten(SIZED, tmp_path)
    assert not found.complete or "self.near.copy_" not in str(found), found


def test_what_grows_is_not_written_in_place(tmp_path: Path) -> None:
    # GIVEN one of two that is longer each time WHEN rewritten THEN it is no verified diff
    found = rewritten(GROWS, tmp_path)
    assert not found.complete, found
    assert "copy_(self.more(x))" not in str(found), found
