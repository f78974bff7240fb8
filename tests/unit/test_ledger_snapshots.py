"""Snapshots of the allocator as events: replayed they give what the allocator says, pool by pool."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.explore.pools import pool_series
from paramgraph_kit.ledger import Snapshots
from paramgraph_kit.trace import PoolAction, PoolEvent


def block(address: int, size: int, state: str = "active_allocated") -> dict[str, Any]:
    return {"address": address, "size": size, "state": state}


def segment(address: int, size: int, *blocks: dict[str, Any], pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {"address": address, "total_size": size, "segment_pool_id": pool, "blocks": list(blocks)}


def test_only_what_changed_is_an_event_and_a_moment_is_one_time() -> None:
    # GIVEN three states: a block, another in its place beside one of a private pool, nothing new
    states = [
        [segment(0, 2048, block(0, 512), block(512, 512, "inactive"))],
        [segment(0, 2048, block(0, 1024)), segment(4096, 2048, block(4096, 512), pool=(7, 3))],
    ]
    moments = iter([states[0], states[1], states[1], []])
    events: list[PoolEvent] = []
    snapshots = Snapshots(events, lambda: next(moments))
    # WHEN each is looked at
    counts = [snapshots.mark(), snapshots.mark(0), snapshots.mark(1), snapshots.mark(2)]
    # THEN a block of another size is another block, pools have names, and a moment without change still takes time
    assert counts == [2, 4, 0, 4]
    assert [(e.time, e.pool, str(e.action), e.address, e.size, e.call) for e in events[2:6]] == [
        (1, "default", "free", 0, 512, 0),
        (1, "private 1", "segment alloc", 4096, 2048, 0),
        (1, "default", "alloc", 0, 1024, 0),
        (1, "private 1", "alloc", 4096, 512, 0),
    ]
    assert {event.time for event in events[6:]} == {3}
    series = {pool.name: pool for pool in pool_series(events)}
    assert series["default"].held(series["default"].live) == [512, 1024, 1024, 0]
    assert series["private 1"].reserved == [0, 2048, 0]


def test_events_give_what_the_allocator_says() -> None:
    # GIVEN the device's allocator, watched at moments while graphs and tensors come and go
    cuda, device = pgk.cuda, pgk.device()
    events: list[PoolEvent] = []
    snapshots = Snapshots(events, cuda.memory_snapshot)
    said = []
    kept: list[Any] = []
    for call in range(6):
        kept.append(torch.ones(300_000 * (call + 1), device=device))
        if call % 2:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                result = kept[0] * 2
            kept.append((graph, result))
        if call == 4:
            kept.pop(0)
            cuda.empty_cache()
        # WHEN each moment is marked
        snapshots.mark(call)
        said.append((cuda.memory_reserved(), cuda.memory_allocated()))
    # THEN all pools together have reserved, and have live, what the allocator counts
    series = pool_series(events)
    assert {pool.name for pool in series} >= {"default", "private 1"}
    for n, totals in enumerate(said):
        assert (sum(p.held(p.reserved)[n] for p in series), sum(p.held(p.live)[n] for p in series)) == totals


def test_snapshots_go_on_after_events_that_are_there() -> None:
    # GIVEN a list that has events WHEN more are appended THEN time goes on
    events = [PoolEvent(41, "default", PoolAction.ALLOC, 0, 512)]
    Snapshots(events, lambda: [segment(0, 2048)]).mark()
    assert [event.time for event in events] == [41, 42]


def test_series_hold_their_value_between_events_but_not_for_ever() -> None:
    # GIVEN events that are far apart WHEN held THEN a gap is filled, and an absurd one is not
    near = [PoolEvent(t, "default", PoolAction.SEGMENT_ALLOC, t, 512) for t in (0, 3)]
    far = [PoolEvent(t, "default", PoolAction.SEGMENT_ALLOC, t, 512) for t in (0, 1 << 60)]
    (one,), (other,) = pool_series(near), pool_series(far)
    assert one.held(one.reserved) == [512, 512, 512, 1024]
    assert other.held(other.reserved) == [512, 1024]


@pytest.mark.parametrize("state", ["active_awaiting_free", "active_pending_free"])
def test_a_block_that_waits_for_another_stream_is_live(state: str) -> None:
    events: list[PoolEvent] = []
    assert Snapshots(events, lambda: [segment(0, 2048, block(0, 512, state))]).mark() == 2
