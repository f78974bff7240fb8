"""What a watch knows of memory: who was given which block, and which line asked for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.trace import PoolAction

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nobody hears of single blocks on a GPU")
DEVICE = pgk.device()


def model() -> nn.Module:
    made: nn.Module = pgk.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(DEVICE))
    return made


def inputs() -> Tensor:
    return torch.randn(4, 8).to(DEVICE)


def test_a_launch_knows_when_it_was_for_the_allocator() -> None:
    # GIVEN a model whose inputs and gradients come and go WHEN training is watched
    fast = model()
    with pgk.watch() as trace:
        for _ in range(4):
            fast(inputs()).sum().backward()
    # THEN at each launch all that it was given is in blocks that live at that moment
    events, launches = trace.pool_events, trace.launches
    assert [launch.event for launch in launches] == sorted(launch.event or -1 for launch in launches)
    for launch in launches:
        assert launch.event is not None
        live: dict[int, int] = {}
        for event in events:
            if event.time > launch.event:
                break
            if event.action is PoolAction.ALLOC:
                live[event.address] = event.size
            elif event.action is PoolAction.FREE:
                live.pop(event.address)
        for address in filter(None, launch.addresses):
            assert any(at <= address < at + size for at, size in live.items())


def test_each_block_that_comes_has_the_line_that_asked_for_it_also_in_a_backward() -> None:
    # GIVEN a model WHEN training is watched
    fast = model()
    with pgk.watch() as trace:
        for _ in range(2):
            loss = fast(inputs()).square().sum()
            loss.backward()
    # THEN autograd's thread, which runs no line of the user's, names the one that waits for it
    first = trace.pool_events[0].time
    came = [event for event in trace.pool_events if event.action is PoolAction.ALLOC and event.time > first]
    texts = {event.frame.text if event.frame else "" for event in came}
    assert {"loss.backward()", "loss = fast(inputs()).square().sum()"} <= texts
    assert "" not in texts
