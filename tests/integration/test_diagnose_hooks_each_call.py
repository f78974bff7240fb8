"""A step that registers a hook, or keeps an order, in each call: what it has changed is as it was, and works."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk

HOOKS: list[Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]] = [lambda _m, _i, out: out * 0.9]


@pytest.mark.parametrize("earlier", [0, 3])
def test_hooks_that_calls_register_are_gone_and_those_before_are_there(earlier: int) -> None:
    """GIVEN a step that registers a hook in each call, also some calls later.

    WHEN it is diagnosed THEN it could be called, and the module has the hooks that it had.
    """
    device = pgk.device()
    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device), torch.randn(2, 4, device=device)

    def step(x: torch.Tensor) -> torch.Tensor:
        net[0].register_forward_hook(HOOKS[0])
        out: torch.Tensor = net(x).detach()
        return out

    for _ in range(earlier):
        step(x)
    before = list(net[0]._forward_hooks)

    found = pgk.diagnose(step, x)

    assert all(each.code != "raises" for each in found.failures), found
    assert list(net[0]._forward_hooks) == before
    net(x)  # which goes through them


def test_the_order_of_a_dictionary_that_keeps_one_is_as_before() -> None:
    """GIVEN a cache whose oldest entry goes, and whose last used one is moved to its end.

    WHEN it is diagnosed THEN it has its entries in their order, and goes on so.
    """
    device = pgk.device()
    cache = OrderedDict((n, torch.full((3,), float(n), device=device)) for n in (3, 1, 2))
    cache.move_to_end(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        cache.move_to_end(1)
        cache[len(cache) + 10] = x * 2
        cache.popitem(last=False)
        return cache[1] + x

    pgk.diagnose(step, torch.randn(3, device=device))

    assert list(cache) == [1, 2, 3]
    cache.popitem(last=False)
    assert list(cache) == [2, 3]
