"""Where numbers are drawn on the host and counters move as well, each is told as what it is."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


class Shadow:
    def __init__(self, net: nn.Module, start: int = 4) -> None:
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.start, self.n = start, 0

    def take_over(self, net: nn.Module) -> None:
        for ours, theirs in zip(self.net.parameters(), net.parameters(), strict=True):
            ours.data.copy_(theirs.data)

    def update(self, net: nn.Module) -> None:
        self.n += 1
        if self.n <= self.start:
            self.take_over(net)
            return
        k = self.n - self.start
        decay = min(0.99, (1 + k) / (10 + k))
        for ours, theirs in zip(self.net.parameters(), net.parameters(), strict=True):
            ours.data.mul_(decay).add_(theirs.data, alpha=1 - decay)


class Flipping:
    def __init__(self) -> None:
        self.net = nn.Linear(4, 2).to(DEVICE)
        self.shadow = Shadow(self.net)

    @torch.no_grad()
    def step(self, x: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.5:
            x = x.flip(1)
        loss: torch.Tensor = self.net(x).square().mean()
        self.net.weight.mul_(0.9)
        self.shadow.update(self.net)
        return loss


def test_a_decay_that_a_counter_moves_is_no_number_that_is_drawn() -> None:
    # GIVEN a branch that is drawn, and an average that copies in its first updates, with a decay that moves behind them
    # WHEN diagnosed
    found = pgk.diagnose(Flipping().step, torch.randn(3, 4, device=DEVICE))
    told = {(f.code, f.frame.text) for f in found if f.frame}

    # THEN its decay is a number that moves, its own test decides what runs, and no loop in what that calls does
    assert ("scalar-frozen", "ours.data.mul_(decay).add_(theirs.data, alpha=1 - decay)") in told, found
    assert ("branch-frozen", "if self.n <= self.start:") in told, found
    assert ("branch-frozen", "if random.random() < 0.5:") in told, found
    assert not any(text.startswith("for ") or code == "host-random" for code, text in told), found


class Noisy:
    def __init__(self) -> None:
        self.n, self.kept = 0, torch.zeros(4, device=DEVICE)

    def blurred(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul(random.uniform(0.5, 0.9))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        if self.n > 4:
            self.kept.add_(self.blurred(x))
        return x * 2 + self.kept


def test_a_number_that_is_drawn_behind_a_counted_branch_stays_one() -> None:
    # GIVEN a number that is drawn where the first calls do not come
    # WHEN diagnosed THEN it is told as drawn
    found = pgk.diagnose(Noisy().step, torch.randn(4, device=DEVICE))
    told = {(f.code, f.frame.text) for f in found if f.frame}
    assert ("host-random", "return x.mul(random.uniform(0.5, 0.9))") in told, found


class Memory:
    def __init__(self, most: int = 64) -> None:
        self.rows, self.at, self.filled, self.most = torch.randn(most, 4, device=DEVICE), 40, 40, most
        self.rng = np.random.default_rng(0)

    def add(self, row: torch.Tensor) -> None:
        self.rows[self.at] = row
        self.at = (self.at + 1) % self.most
        self.filled = min(self.filled + 1, self.most)

    def draw(self, n: int = 8) -> torch.Tensor:
        return self.rows[torch.as_tensor(self.rng.integers(0, self.filled, size=n), device=DEVICE)]


class Agent:
    every: Any = 2

    def __init__(self) -> None:
        self.net, self.slow, self.count = nn.Linear(4, 4).to(DEVICE), nn.Linear(4, 4).to(DEVICE), 0

    @torch.no_grad()
    def learn(self, memory: Memory) -> torch.Tensor:
        x = memory.draw()
        loss: torch.Tensor = (self.net(x) - self.slow(x)).square().mean()
        self.count += 1
        if self.count % self.every == 0:
            for ours, theirs in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        return loss


def test_a_branch_that_a_counter_decides_is_not_said_to_be_decided_by_what_else_is_set() -> None:
    # GIVEN a step that draws among as many rows as there are, and a counter that decides what runs
    # WHEN diagnosed THEN that number is not said to decide the counter's branch
    found = pgk.diagnose(Agent().learn, Memory())
    assert any(f.code == "branch-frozen" and f.frame and "self.count" in f.frame.text for f in found), found
    assert not any("filled" in note and "decides a branch" in note for note in found.notes), found


class Forced:
    def __init__(self, most: int = 7) -> None:
        self.cell, self.most, self.n = nn.Linear(6, 6).to(DEVICE), most, 0

    def rounds(self) -> int:
        return min(self.most, 3 + self.n // 3)

    @torch.no_grad()
    def step(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = h.new_zeros(())
        forced = random.random() < 0.5
        rounds = self.rounds()
        for t in range(rounds):
            h = self.cell(h).tanh()
            loss = loss + (h - y[t]).square().mean()
            if forced:  # noqa: SIM108  # a choice of its own line
                h = y[t]
            else:
                h = h.softmax(1)
        self.n += 1
        return loss / 7


def test_a_loop_that_a_counter_makes_longer_is_told_beside_a_choice_in_it_that_is_drawn() -> None:
    # GIVEN a loop with more rounds in later calls, in which a draw decides what the next round is given
    # WHEN diagnosed THEN the loop and the choice are both told
    step = Forced().step
    found = pgk.diagnose(step, torch.randn(2, 6, device=DEVICE), torch.randn(7, 2, 6, device=DEVICE))
    told = {(f.code, f.frame.text) for f in found if f.frame}
    assert ("branch-frozen", "for t in range(rounds):") in told, found
    assert any(code == "branch-frozen" and text.startswith("if forced:") for code, text in told), found


def test_a_loop_of_as_many_rounds_as_ever_is_not_told_beside_a_choice_in_it() -> None:
    # GIVEN the same with as many rounds in each call
    # WHEN diagnosed THEN the choice is told, and no loop
    step = Forced(most=3).step
    found = pgk.diagnose(step, torch.randn(2, 6, device=DEVICE), torch.randn(7, 2, 6, device=DEVICE))
    told = {(f.code, f.frame.text) for f in found if f.frame}
    assert any(code == "branch-frozen" and text.startswith("if forced:") for code, text in told), found
    assert not any(text.startswith("for ") for _, text in told), found


class Leaving(Forced):
    @torch.no_grad()
    def step(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = h.new_zeros(())
        for t in range(6):
            h = self.cell(h).tanh()
            loss = loss + (h - y[t]).square().mean()
            if random.random() < 0.3:
                loss = loss * 2
                break
        return loss


def test_a_loop_that_a_draw_leaves_is_not_told_beside_what_leaves_it() -> None:
    # GIVEN a loop that a draw ends WHEN diagnosed THEN the test is told, and not the loop, which has one length
    step = Leaving().step
    found = pgk.diagnose(step, torch.randn(2, 6, device=DEVICE), torch.randn(7, 2, 6, device=DEVICE))
    told = {(f.code, f.frame.text) for f in found if f.frame}
    assert ("branch-frozen", "if random.random() < 0.3:") in told, found
    assert not any(text.startswith("for ") for _, text in told), found


class Slow:
    def __init__(self) -> None:
        self.n = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        x = x.flip(1) if random.random() < 0.5 else x
        x = x * 2
        if self.n // 6 % 2 == 1:
            x = x.sigmoid()
        return x


def test_what_a_slow_counter_decides_is_told_where_numbers_are_drawn_too() -> None:
    # GIVEN a branch that only many calls later goes otherwise, and a draw
    # WHEN diagnosed THEN both are told
    found = pgk.diagnose(Slow().step, torch.randn(2, 6, device=DEVICE))
    assert any(f.frame and f.frame.text == "if self.n // 6 % 2 == 1:" for f in found), found


class Counting:
    """Steps an optimizer of torch's, and keeps a counter of its own in the groups of that."""

    def __init__(self, every: int = 3) -> None:
        self.net = nn.Linear(4, 2).to(DEVICE)
        self.base, self.every = torch.optim.SGD(self.net.parameters(), lr=0.1), every
        for group in self.base.param_groups:
            group["count"] = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(x).square().mean()
        self.base.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.base.step()
        for group in self.base.param_groups:
            group["count"] += 1
            if group["count"] % self.every == 0:
                group["params"][0].data.mul_(0.5)
        return loss.detach()


class Decaying(Counting):
    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().step(x)
        for group in self.base.param_groups:
            group["weight_decay"] += 0.01
        return loss


def test_a_number_of_the_user_s_in_a_group_is_no_rate() -> None:
    # GIVEN a counter in a group of an optimizer's, which the optimizer does not know
    # WHEN diagnosed THEN it is a counter that decides a branch, and no learning rate
    found = pgk.diagnose(Counting().step, torch.randn(3, 4, device=DEVICE))
    assert not any(f.code == "learning-rate-frozen" for f in found), found
    assert any(f.code == "branch-frozen" and f.frame and 'group["count"]' in f.frame.text for f in found), found


def test_a_number_that_the_optimizer_knows_is_told_where_it_steps() -> None:
    # GIVEN a decay in a group, which the optimizer reads WHEN diagnosed THEN it is told
    found = pgk.diagnose(Decaying().step, torch.randn(3, 4, device=DEVICE))
    assert any(f.code == "learning-rate-frozen" and "weight_decay goes from" in f.message for f in found), found


class Warming:
    def __init__(self, every: int) -> None:
        self.n, self.every = 0, every

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        x = x.flip(1) if random.random() < 0.5 else x
        x = x * random.uniform(0.5, 1.5)
        return x * (1 + (self.n // self.every if self.every else 0))


@pytest.mark.parametrize("every", [11, 0])
def test_a_number_that_a_slow_counter_moves_is_told_where_numbers_are_drawn_too(every: int) -> None:
    # GIVEN a factor that only some calls later is another one, or never is, beside what is drawn
    # WHEN diagnosed THEN it is told where it moves, and what is drawn is told as drawn
    found = pgk.diagnose(Warming(every).step, torch.randn(2, 6, device=DEVICE))
    told = {(f.code, f.frame.text) for f in found if f.frame}
    line = "return x * (1 + (self.n // self.every if self.every else 0))"
    assert (("scalar-frozen", line) in told) == bool(every), found
    assert ("host-random", "x = x * random.uniform(0.5, 1.5)") in told, found
    assert not any(text == line and code != "scalar-frozen" for code, text in told), found
