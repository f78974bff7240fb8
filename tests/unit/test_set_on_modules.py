"""What a call sets on torch's own modules is there in the next one: numbers, modes, and which parameters are frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

DEVICE = driver().device
drop, norm = nn.Dropout(0.0), nn.BatchNorm1d(4)
net = nn.Sequential(nn.Linear(4, 4), drop, norm).to(DEVICE)
net.last = torch.zeros(4, device=DEVICE)
x = torch.ones(5, 4, device=DEVICE)


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    yield
    twin().recover()


@torch.no_grad()
def annealed(x: Any) -> Any:
    drop.p = min(0.5, drop.p + 0.05)
    return net(x)


@torch.no_grad()
def softer(x: Any) -> Any:
    norm.momentum = (norm.momentum or 0.0) * 0.9
    return net(x)


@torch.no_grad()
def in_turns(x: Any) -> Any:
    net.train(not net.training)
    return net(x)


@torch.no_grad()
def handed_on(x: Any) -> Any:
    y = net(x) - net.last
    net.last = y * 0.5
    return y


def frozen_in_turns(x: Any) -> Any:
    for p in net[0].parameters():
        p.requires_grad_(not p.requires_grad)
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss.detach()


def set_in_each_call(x: Any) -> Any:
    net.train()
    drop.p = 0.1
    for p in net[0].parameters():
        p.requires_grad_(True)
    net(x).mean().backward()
    for p in net[0].parameters():
        p.requires_grad_(False)
    drop.p = 0.2
    net.eval()
    return net(x).detach()


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (annealed, "scalar-frozen"),
        (softer, "scalar-frozen"),
        (in_turns, "branch-frozen"),
        (handed_on, "stale-input"),
        (frozen_in_turns, "branch-frozen"),
    ],
)
def test_what_moves_on_a_module_is_found(step: Callable[[Any], Any], code: str) -> None:
    # GIVEN a step that sets something on a module of torch's own, which is another in each call
    # WHEN it is looked at
    found = pgk.diagnose(step, x)
    # THEN a graph would freeze it, and the module is as before
    assert code in {each.code for each in found.failures}
    assert (net.training, drop.p, norm.momentum) == (True, 0.0, 0.1)
    assert all(p.requires_grad for p in net.parameters())


def test_what_each_call_sets_anew_is_none() -> None:
    # GIVEN a step that ends with other modes, numbers and frozen parameters than it begins with, and sets them first
    # WHEN it is looked at
    found = pgk.diagnose(set_in_each_call, x)
    # THEN nothing is told
    assert [each.code for each in found.failures] == []
