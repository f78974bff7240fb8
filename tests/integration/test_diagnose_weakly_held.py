"""What a function leads to by a weak reference alone is put back, too."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

import paramgraph_kit as pgk


class Plain(torch.optim.Optimizer):
    """Momentum that begins with the first step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad)
                p.sub_(state["m"], alpha=0.1)


def test_a_step_that_a_schedule_has_wrapped_leaves_its_optimizer_as_it_was() -> None:
    # GIVEN an optimizer whose `step` a schedule has put a function around, with gradients, and no state yet
    net = nn.Linear(2, 1).to(pgk.device())
    opt = Plain(net.parameters())
    torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    net(torch.ones(1, 2, device=pgk.device())).sum().backward()
    before = net.weight.detach().clone()
    # WHEN it is diagnosed
    pgk.diagnose(opt.step)
    # THEN it has no state, and its parameters are what they were
    assert not opt.state
    assert torch.equal(net.weight, before)


class Callback:
    """What knows its trainer weakly, as callbacks do."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = weakref.ref(trainer)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        trainer = self.trainer()
        trainer.seen.append(x.shape[0])  # type: ignore[union-attr]
        return x * 2


class Trainer:
    """Has a list."""

    def __init__(self) -> None:
        self.seen: list[int] = []


def test_what_a_callback_knows_weakly_is_told_and_put_back() -> None:
    # GIVEN a callback that adds to a list of a trainer that it has a weak reference to
    trainer = Trainer()
    # WHEN diagnosed THEN the list is told, and is as empty as before
    found = pgk.diagnose(Callback(trainer), torch.ones(2, device=pgk.device()))
    assert [each.code for each in found.failures] == ["host-counter"], found
    assert trainer.seen == []
