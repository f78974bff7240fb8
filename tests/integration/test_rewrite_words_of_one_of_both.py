"""Words for values that one of two ways gives, for parts that are written, for draws below a count, and for momenta."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")


class _Lars(torch.optim.Optimizer):
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad
                if p.ndim > 0:
                    w_norm = torch.norm(p)
                    g_norm = torch.norm(grad)
                    if w_norm > 0 and g_norm > 0:  # noqa: SIM108
                        ratio = group["eta"] * w_norm / g_norm
                    else:
                        ratio = 1.0
                    grad = grad * ratio
                p.data.add_(grad, alpha=-0.1)


class _Trusting:
    def __init__(self) -> None:
        self.w = torch.ones(4).to(pgk.device()).requires_grad_()
        self.opt = _Lars([self.w], {"eta": 0.1})

    def step(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        loss = (x * self.w * g).sum()
        self.opt.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.opt.step()
        return loss.detach()


class _Damped:
    def __init__(self) -> None:
        self.lam, self.p = 0.1, torch.ones(4).to(pgk.device())

    def step(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        cost = (x - self.p * self.lam).square().sum()
        if cost < g.square().sum():
            self.lam = max(self.lam * 0.5, 1e-9)
        else:
            self.lam = min(self.lam * 2.0, 1e6)
        return cost


class _Flipping:
    def step(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        at = random.randrange(3)
        trial = x.clone()
        trial[at : at + 2] *= -1
        return trial + g


class _Replaying:
    def __init__(self) -> None:
        self.rows, self.size = torch.zeros(32, 4).to(pgk.device()), 3

    def step(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        self.size += 1
        at = torch.randint(0, self.size, (8,), device=x.device)
        return self.rows[at] + x + g


class _Replayed(_Replaying):
    def __init__(self) -> None:
        super().__init__()
        self.filled = torch.ones((), dtype=torch.long).to(pgk.device())

    def step(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        self.filled += 1
        at = (torch.rand((8,), device=x.device) * self.filled).long().clamp(max=self.filled - 1)
        return self.rows[at] + torch.where(torch.norm(x) > 0, torch.norm(g), 1.0)


class _Cycling:
    def __init__(self) -> None:
        self.w = torch.ones(4).to(pgk.device()).requires_grad_()
        self.opt = torch.optim.SGD([self.w], lr=0.05, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, max_lr=0.1, total_steps=40)

    def step(self, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        loss = (x * self.w * g).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self.opt.step()
        self.sched.step()
        self.opt.zero_grad()
        return loss.detach()


def _told(function: Any) -> str:
    x = torch.ones(4).to(pgk.device())
    return " ".join(str(pgk.diagnose(function, x, x.clone())).split())


def test_a_name_of_both_ways_has_the_value_of_the_other_way() -> None:
    # GIVEN a ratio of norms, or 1.0, where nothing has that name ahead of the branch
    # WHEN the step is diagnosed
    found = _told(_Trusting().step)

    # THEN torch.where chooses between the two, and no name that is not bound
    assert 'torch.where((w_norm > 0) & (g_norm > 0), group["eta"] * w_norm / g_norm, 1.0)`' in found


def test_two_ways_of_one_branch_do_not_read_each_others_number() -> None:
    # GIVEN a number that each of the two ways of one branch sets of what it was
    # WHEN the step is diagnosed
    found = _told(_Damped().step)

    # THEN none of these lines is said to read what the other has made
    assert "as it is made here" not in found


def test_a_part_that_is_changed_in_place_leaves_the_rest_as_it_is() -> None:
    # GIVEN a step that turns the sign of a part that the host draws
    # WHEN it is diagnosed
    found = _told(_Flipping().step)

    # THEN what lies outside of that part stays
    assert "`trial.copy_(torch.where((at >= at_in) & (at < at_in + 2), trial * (-1), trial))`" in found


def test_a_draw_below_a_count_has_fractions_of_a_tensor() -> None:
    # GIVEN a step that draws rows below a number that it counts
    # WHEN it is diagnosed
    found = _told(_Replaying().step)

    # THEN fractions of a tensor that is filled are told, and no other line than its own
    assert "`size_in.fill_(self.size)`" in found
    assert "`(torch.rand((8,), device=x.device) * size_in).long().clamp(max=size_in - 1)`" in found
    assert "y = x[:n].sum()" not in found


def test_a_momentum_that_a_scheduler_moves_keeps_the_step_behind_the_launch() -> None:
    # GIVEN SGD whose momentum a scheduler moves
    # WHEN its step is diagnosed
    found = _told(_Cycling().step)

    # THEN no tensor is asked for in its place: the step is behind the launch, or the momentum stays
    assert "into a tensor that this line reads" not in found
    assert "take `self.opt.step()` out of the step" in found
    assert "`self.opt.zero_grad(set_to_none=False)`" in found


def test_what_these_words_make_is_sound() -> None:
    # GIVEN a step with a draw below a tensor and a choice by torch.where
    # WHEN it is diagnosed
    # THEN nothing is told
    assert "no problems" in _told(_Replayed().step)
