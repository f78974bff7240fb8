"""The caching allocator's rules, and a million random requests against its invariants."""

from __future__ import annotations

import random
import time
from bisect import insort
from itertools import pairwise

import pytest

from paramgraph_kit.driver.sim.allocator import (
    DEFAULT_POOL,
    MIDDLE_SEGMENT,
    ROUND,
    SMALL,
    SMALL_SEGMENT,
    CachingAllocator,
)
from paramgraph_kit.trace.model import PoolAction, PoolEvent

MIB = 1 << 20


class Device:
    """Segments one after another, first fit in what was given back, up to a limit."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit, self.held, self.next = limit, 0, 1 << 30
        self.sizes: dict[int, int] = {}
        self.spare: dict[int, list[int]] = {}

    def map(self, nbytes: int) -> int | None:
        if self.held + nbytes > self.limit:
            return None
        self.held += nbytes
        if self.spare.get(nbytes):
            address = self.spare[nbytes].pop()
        else:
            address, self.next = self.next, self.next + nbytes
        self.sizes[address] = nbytes
        return address

    def unmap(self, address: int) -> None:
        size = self.sizes.pop(address)
        self.held -= size
        self.spare.setdefault(size, []).append(address)


def check(allocator: CachingAllocator) -> None:
    """Everything that must hold between two calls; O(blocks)."""
    allocated = reserved = live = count = 0
    spans: list[tuple[int, int]] = []
    for pool in allocator.pools.values():
        pool_allocated = pool_live = 0
        free_by_list: dict[int, list[tuple[int, int]]] = {}
        for segment in pool.segments.values():
            assert segment.pool is pool
            insort(spans, (segment.address, segment.size))
            at, was_free = segment.address, False
            for block in segment.blocks():
                assert block.address == at, "blocks tile their segment"
                assert block.size % ROUND == 0
                assert block.size > 0
                assert allocator.blocks[block.address] is block
                assert block.live or not was_free, "no two adjacent free blocks"
                if block.live:
                    pool_allocated += block.size
                    pool_live += 1
                    assert block.requested <= block.size
                else:
                    free_by_list.setdefault(id(segment.free), []).append((block.size, block.address))
                was_free = not block.live
                at += block.size
                count += 1
            assert at == segment.address + segment.size
            reserved += segment.size
        for segment in pool.segments.values():
            assert segment.free == sorted(free_by_list.get(id(segment.free), []))
        assert pool.stats.allocated == pool_allocated
        assert pool.stats.live_blocks == pool_live
        allocated += pool_allocated
        live += pool_live
    assert (allocator.stats.allocated, allocator.stats.reserved, allocator.stats.live_blocks) == (
        allocated,
        reserved,
        live,
    )
    assert allocator.stats.peak_allocated >= allocated
    assert len(allocator.blocks) == count
    for (a, size), (b, _) in pairwise(spans):
        assert a + size <= b, "segments do not overlap"


@pytest.mark.parametrize(
    ("request_", "segment"),
    [
        (1, SMALL_SEGMENT),
        (SMALL, SMALL_SEGMENT),
        (SMALL + 1, MIDDLE_SEGMENT),
        (10 * MIB - ROUND, MIDDLE_SEGMENT),
        (10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB),
    ],
)
def test_segments_have_the_sizes_of_cudas_allocator(request_: int, segment: int) -> None:
    # GIVEN an allocator without memory
    allocator = CachingAllocator(Device())
    # WHEN one block is asked for
    allocator.alloc(request_)
    # THEN a segment of CUDA's size for that request is reserved
    assert allocator.stats.reserved == segment
    check(allocator)


def test_the_smallest_fitting_block_of_the_same_stream_is_taken() -> None:
    # GIVEN free blocks of 4, 2 and 3 KiB, kept apart by live ones, and the same on another stream
    allocator = CachingAllocator(Device())
    freed = {}
    for stream in (0, 16):
        for kib in (4, 2, 3):
            address = allocator.alloc(kib << 10, stream)
            allocator.alloc(512, stream)
            assert address is not None
            freed[stream, kib] = address
    for address in freed.values():
        allocator.free(address)
    # WHEN 2.5 KiB are asked for on each stream
    # THEN each gets its own stream's 3 KiB block
    assert allocator.alloc(2560, 0) == freed[0, 3]
    assert allocator.alloc(2560, 16) == freed[16, 3]


def test_cached_memory_is_used_again_and_empty_cache_returns_it() -> None:
    # GIVEN a freed block
    device = Device()
    allocator = CachingAllocator(device)
    first = allocator.alloc(30 * MIB)
    assert first is not None
    allocator.free(first)
    # WHEN the same size is asked for again, THEN it is the same address
    assert allocator.alloc(30 * MIB) == first
    # WHEN it is freed and the cache emptied, THEN the device has it back
    allocator.free(first)
    assert device.held == 30 * MIB
    allocator.empty_cache()
    assert device.held == 0
    assert allocator.stats.reserved == 0


def test_a_block_that_another_stream_uses_serves_again_after_the_capture() -> None:
    # GIVEN a block that a second stream was told to use, and one that its own was
    allocator = CachingAllocator(Device())
    shared, own = (allocator.alloc(30 * MIB, stream=16) for _ in range(2))
    assert shared is not None
    assert own is not None
    allocator.share(shared, 32)
    allocator.share(own, 16)
    # WHEN both are freed in a capture THEN the first one waits for its end, and is no longer counted
    allocator.captures_underway = 1
    allocator.free(shared)
    allocator.free(own)
    assert allocator.stats.allocated == 0
    assert allocator.alloc(30 * MIB, stream=16) == own
    assert allocator.alloc(30 * MIB, stream=16) not in (shared, own)
    allocator.captures_underway = 0
    assert allocator.alloc(30 * MIB, stream=16) == shared


def test_a_private_pool_stays_reserved_until_nobody_uses_it() -> None:
    # GIVEN a private pool with one freed block
    device = Device()
    allocator = CachingAllocator(device)
    pool = allocator.new_pool_id()
    allocator.retain(pool)
    address = allocator.alloc(1000, 0, pool)
    assert address is not None
    allocator.free(address)
    # WHEN the default pool asks, THEN it gets memory of its own
    assert allocator.alloc(1000) != address
    # WHEN the cache is emptied, THEN the private segment stays until the pool is released
    allocator.empty_cache()
    assert allocator.find(address) is not None
    allocator.release(pool)
    allocator.empty_cache()
    assert allocator.find(address) is None
    assert pool not in allocator.pools


def test_a_full_device_gives_up_its_cache_before_it_fails() -> None:
    # GIVEN a device of 40 MiB with 30 MiB cached
    allocator = CachingAllocator(Device(40 * MIB))
    address = allocator.alloc(30 * MIB)
    assert address is not None
    allocator.free(address)
    # WHEN 40 MiB are asked for, THEN the cache makes room; one byte more has none
    assert allocator.alloc(40 * MIB) is not None
    assert allocator.alloc(1) is None
    check(allocator)


def test_a_block_cannot_be_freed_twice() -> None:
    # GIVEN a freed block
    allocator = CachingAllocator(Device())
    address = allocator.alloc(512)
    assert address is not None
    allocator.free(address)
    # WHEN it is freed again, THEN that is an error
    with pytest.raises(ValueError, match="freed twice"):
        allocator.free(address)


def test_listeners_hear_every_event_with_its_pool() -> None:
    # GIVEN a listener
    allocator = CachingAllocator(Device())
    heard: list[PoolEvent] = []
    allocator.listeners.append(heard.append)
    pool = allocator.new_pool_id()
    allocator.retain(pool)
    # WHEN a private block comes and goes with its segment
    address = allocator.alloc(100, 0, pool)
    assert address is not None
    allocator.free(address)
    allocator.release(pool)
    allocator.empty_cache()
    # THEN four events tell so, in order
    assert [(e.action, e.pool, e.size) for e in heard] == [
        (PoolAction.SEGMENT_ALLOC, "private 1", SMALL_SEGMENT),
        (PoolAction.ALLOC, "private 1", 512),
        (PoolAction.FREE, "private 1", 512),
        (PoolAction.SEGMENT_FREE, "private 1", SMALL_SEGMENT),
    ]
    assert [e.time for e in heard] == [0, 1, 2, 3]


def test_a_free_that_arrives_inside_an_allocation_waits_for_its_end() -> None:
    # GIVEN a device whose mapping triggers a free, as a garbage collection may
    device = Device()
    allocator = CachingAllocator(device)
    victim = allocator.alloc(512)
    assert victim is not None
    plain = device.map

    def collecting(nbytes: int) -> int | None:
        allocator.free(victim)
        return plain(nbytes)

    device.map = collecting  # type: ignore[method-assign]
    # WHEN an allocation maps a segment
    allocator.alloc(30 * MIB)
    # THEN the freed block is gone afterwards and the books are straight
    assert not allocator.blocks[victim].live
    check(allocator)


def test_a_million_requests_keep_every_invariant() -> None:
    # GIVEN five kinds of requests, three streams, the default pool and two private ones
    device = Device(64 << 30)
    allocator = CachingAllocator(device)
    pools = [DEFAULT_POOL, allocator.new_pool_id(), allocator.new_pool_id()]
    for pool in pools[1:]:
        allocator.retain(pool)
    rng = random.Random(7)
    live: list[tuple[int, int, tuple[int, int]]] = []
    owner: dict[int, tuple[int, int]] = {}  # segment -> the pool it was first seen in
    steps = 1_000_000
    started = time.process_time()
    peak = 0
    # WHEN a million addresses are asked for or given back
    for step in range(steps):
        if live and (len(live) > 3000 or rng.random() < 0.48):
            i = int(rng.random() * len(live))
            live[i], live[-1] = live[-1], live[i]
            address, nbytes, pool = live.pop()
            block = allocator.blocks[address]
            # THEN a block is still as it was handed out: nothing overlapped or moved it
            assert block.live
            assert block.requested == nbytes
            assert block.segment.pool.id == pool
            allocator.free(address)
        else:
            shift = rng.random()
            nbytes = 1 + int(rng.random() * (4096 if shift < 0.6 else SMALL if shift < 0.85 else 40 * MIB))
            pool = pools[int(rng.random() * 3)]
            fresh = allocator.alloc(nbytes, 16 * int(rng.random() * 3), pool)
            assert fresh is not None
            block = allocator.blocks[fresh]
            small = nbytes <= SMALL
            rounded = -(-nbytes // ROUND) * ROUND
            assert fresh % ROUND == 0
            assert rounded <= block.size
            assert block.size - rounded <= (0 if small else SMALL)
            assert block.segment.small == small
            assert owner.setdefault(block.segment.address, pool) == pool
            live.append((fresh, nbytes, pool))
            peak = max(peak, allocator.stats.allocated)
        if step % 50_000 == 0:
            check(allocator)
        if step % 200_000 == 199_999:
            gone = set(device.sizes)
            allocator.empty_cache()
            for address in gone - set(device.sizes):
                owner.pop(address, None)
            check(allocator)
    # THEN the books are straight, the peak is the peak, and it did not take long
    check(allocator)
    assert allocator.stats.peak_allocated == peak
    for address, _, _ in live:
        allocator.free(address)
    for pool in pools[1:]:
        allocator.release(pool)
    allocator.empty_cache()
    assert device.held == 0
    assert allocator.stats.live_blocks == 0
    assert time.process_time() - started < 60
