"""Backward passes seen node by node, on the CPU: nothing of them changes."""

from __future__ import annotations

import torch
from torch import nn

from paramgraph_kit.driver.backward import at_each_node


def gradients(told: list[int] | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with torch.device("cpu"):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        x = torch.randn(3, 4, requires_grad=True)
    out = model(x).square().sum()
    if told is None:
        out.backward()
    else:
        with at_each_node(lambda: told.append(1)):
            (slope,) = torch.autograd.grad(out, x, retain_graph=True)
            assert slope.shape == x.shape
            out.backward()
    assert x.grad is not None
    return [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def test_each_node_is_told_and_gradients_are_the_same() -> None:
    # GIVEN the same backward passes with and without  WHEN both run
    told: list[int] = []
    seen, plain = gradients(told), gradients(None)

    # THEN there were nodes in both passes, and every gradient is the same
    assert len(told) >= 10
    assert all(torch.equal(a, b) for a, b in zip(seen, plain, strict=True))

    # AND afterwards nobody is told any more
    before = len(told)
    gradients(None)
    assert len(told) == before
