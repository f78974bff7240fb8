"""A branch that makes a list of tensors, and one that a loop asks of its own variable, have words that can run."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

DEVICE = pgk.device()


class _Fit:
    def __init__(self) -> None:
        self.n, self.w = 0, torch.ones(4).to(DEVICE)
        self.on = [True, False, True]
        self.net = torch.nn.Linear(4, 1).to(DEVICE)

    def weighed(self, x: torch.Tensor) -> torch.Tensor:
        losses = [(x * self.w).sum(), (x - self.w).square().sum()]
        self.n += 1
        if self.n > 4:
            losses = [2 * loss for loss in losses]
        self.w.add_(0.01 * (losses[0] + losses[1]))
        return losses[0] + losses[1]

    def shorter(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x * self.w, x - self.w]
        self.n += 1
        if self.n > 4:
            parts = [x * 2]
        return torch.stack(parts).sum()

    def parts(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        for on in self.on:
            if on:
                y = y.sin()
        self.on = [not each for each in self.on]
        return y.sum()

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        self.net.zero_grad(set_to_none=True)
        self.n += 1
        if self.n > 3:
            self.net(x).sum().backward()
        got = []
        for p in self.net.parameters():
            if p.grad is None:
                got.append(torch.zeros_like(p).sum())
                continue
            got.append(p.grad.sum())
        return torch.stack(got).sum()


def test_a_list_is_chosen_tensor_by_tensor_where_both_have_as_many() -> None:
    # GIVEN a step that weighs its losses after some steps, and one that has fewer then
    x = torch.randn(4).to(DEVICE)

    # WHEN both are diagnosed
    found, shorter = str(pgk.diagnose(_Fit().weighed, x)), str(pgk.diagnose(_Fit().shorter, x))

    # THEN each loss is chosen by itself, and no list is given to torch.where
    assert (
        "`losses = [torch.where(chosen_in, new, old) for new, old in zip([2 * loss for loss in losses], losses)]`"
        in (found)
    )
    assert "torch.where(chosen_in, [" not in shorter


def test_what_a_loop_asks_of_its_own_variable_is_asked_for_each_round() -> None:
    # GIVEN a loop that asks for flags of the host's, and one that asks which gradients there are
    x = torch.randn(4).to(DEVICE)

    # WHEN both are diagnosed
    flags, gradients = str(pgk.diagnose(_Fit().parts, x)), str(pgk.diagnose(_Fit().gathered, x))

    # THEN the flags have a tensor with one for each round, and no line before the launch asks for a gradient
    assert "`chosen_in.copy_(torch.tensor([bool(on) for on in self.on]))`" in flags
    assert "`y = torch.where(chosen, y.sin(), y)`" in flags
    assert "asks it of another `p`, which no line before the launch has: capture one graph" in gradients
    assert "fill_(p.grad" not in gradients
