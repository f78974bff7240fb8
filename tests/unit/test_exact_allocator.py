"""The simulated allocator's books, to the byte: what is counted, told, merged, split and found where."""

from __future__ import annotations

import pytest

from paramgraph_kit.driver.sim.allocator import (
    DEFAULT_POOL,
    NOT_IN_USE,
    CachingAllocator,
    Stats,
    Tally,
)
from paramgraph_kit.trace.model import PoolAction, PoolEvent
from tests.unit.test_sim_allocator import MIB, Device, check

START = 1 << 30  # the first address of the tests' device
ROUND, SMALL, SMALL_SEGMENT, MIDDLE_SEGMENT = 512, MIB, 2 * MIB, 20 * MIB


def taken(allocator: CachingAllocator, nbytes: int, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> int:
    address = allocator.alloc(nbytes, stream, pool)
    assert address is not None
    return address


def books(tally: Tally) -> tuple[int, int, int]:
    return tally.taken, tally.freed, tally.peak


def test_pools_are_numbered_from_one_and_a_user_s_are_told_from_a_capture_s() -> None:
    # GIVEN an allocator WHEN pools are asked for THEN each has the next number, at the place of who asked
    allocator = CachingAllocator(Device())
    assert [allocator.new_pool_id(), allocator.new_pool_id(mine=True), allocator.new_pool_id()] == [
        (1, 0),
        (0, 2),
        (3, 0),
    ]
    # AND is called by it
    assert [allocator.retain((0, 2)).name, allocator.retain((3, 0)).name] == ["private 2", "private 3"]
    assert {key: pool.name for key, pool in allocator.pools.items()} == {
        (0, 0): "default",
        (0, 2): "private 2",
        (3, 0): "private 3",
    }
    assert DEFAULT_POOL == (0, 0)
    assert allocator.stats == Stats(0, 0, 0, 0, 0)


def test_a_pool_is_kept_as_often_as_it_was_asked_for_and_not_again_once_nobody_does() -> None:
    # GIVEN a private pool with a block, kept by two
    device = Device()
    allocator = CachingAllocator(device)
    pool = allocator.retain(allocator.new_pool_id())
    assert allocator.retain(pool.id) is pool
    address = taken(allocator, 512, 0, pool.id)
    for users, there in ((1, True), (0, True)):
        # WHEN each lets go THEN it is there while its block lives
        allocator.release(pool.id)
        assert pool.users == users
        allocator.empty_cache()
        assert (pool.id in allocator.pools) is there
    # AND nobody can take it up again
    with pytest.raises(RuntimeError) as caught:
        allocator.retain(pool.id)
    assert str(caught.value) == NOT_IN_USE
    # WHEN the block goes too THEN so does the pool, and letting go of what is gone says nothing
    allocator.free(address)
    allocator.empty_cache()
    allocator.release(pool.id)
    assert list(allocator.pools) == [DEFAULT_POOL]
    assert device.held == 0
    # AND the default pool can be kept, let go, and kept
    for _ in range(2):
        assert allocator.retain(DEFAULT_POOL).users == 1
        allocator.release(DEFAULT_POOL)


def test_what_is_left_of_a_block_is_split_off_if_it_is_enough() -> None:
    # GIVEN an empty small segment WHEN half of it is asked for twice THEN it is used to the last byte
    allocator = CachingAllocator(Device())
    both = taken(allocator, SMALL), taken(allocator, SMALL)
    assert both == (START, START + SMALL)
    assert [allocator.blocks[each].size for each in both] == [SMALL, SMALL]
    # AND in another one of the same size a round is split off, and serves
    most = taken(allocator, SMALL - ROUND), taken(allocator, SMALL)
    assert [taken(allocator, size) - START - SMALL_SEGMENT for size in (ROUND, 1)] == [2 * SMALL - ROUND, SMALL_SEGMENT]
    assert [allocator.blocks[each].size for each in most] == [SMALL - ROUND, SMALL]
    # AND of a large one what is left is split off if it is more than a mebibyte
    large = taken(allocator, 9 * MIB)
    for size, block in (
        (MIDDLE_SEGMENT - SMALL - ROUND, MIDDLE_SEGMENT - SMALL - ROUND),
        (MIDDLE_SEGMENT - SMALL, MIDDLE_SEGMENT),
        (9 * MIB, 9 * MIB),
    ):
        allocator.free(large)
        assert taken(allocator, size) == large
        assert allocator.blocks[large].size == block
        check(allocator)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_neighbours_become_one_block_in_whatever_order_they_come_back(order: tuple[int, ...]) -> None:
    # GIVEN four blocks in a row, of which the last stays WHEN the others come back THEN one is left, and it serves
    allocator = CachingAllocator(Device())
    addresses = [taken(allocator, ROUND * (n + 1)) for n in range(4)]
    assert addresses == [START, START + ROUND, START + 3 * ROUND, START + 6 * ROUND]
    for n in order:
        allocator.free(addresses[n])
        check(allocator)
    segment = allocator.pools[DEFAULT_POOL].segments[START]
    assert [(b.address - START, b.size, b.live) for b in segment.blocks()] == [
        (0, 6 * ROUND, False),
        (6 * ROUND, 4 * ROUND, True),
        (10 * ROUND, SMALL_SEGMENT - 10 * ROUND, False),
    ]
    assert [b.before and b.before.address - START for b in segment.blocks()] == [None, 0, 6 * ROUND]
    assert segment.free == [(6 * ROUND, START), (SMALL_SEGMENT - 10 * ROUND, START + 10 * ROUND)]
    assert taken(allocator, 6 * ROUND) == START


def test_an_address_is_found_up_to_the_last_byte_of_its_block() -> None:
    # GIVEN two blocks and what is left behind them WHEN addresses are looked up
    allocator = CachingAllocator(Device())
    first, second = taken(allocator, 1), taken(allocator, 600)
    allocator.free(second)
    third = taken(allocator, 600)
    rest = third + 2 * ROUND
    # THEN each belongs to one block
    for address, block in (
        (first, first),
        (first + ROUND - 1, first),
        (third, third),
        (rest - 1, third),
        (rest, rest),
        (first + SMALL_SEGMENT - 1, rest),
    ):
        found = allocator.find(address)
        assert found is not None
        assert found.address == block
        assert allocator.is_live(address) is (block != rest)
    for nowhere in (first - 1, first + SMALL_SEGMENT):
        assert allocator.find(nowhere) is None
        assert not allocator.is_live(nowhere)
    # AND for what is left nobody has asked
    assert [block.requested for block in allocator.pools[DEFAULT_POOL].segments[first].blocks()] == [1, 600, 0]


def test_small_and_large_requests_are_counted_apart() -> None:
    # GIVEN two small and two large blocks, of which some come back, and a segment that is unmapped
    allocator = CachingAllocator(Device())
    small, large = taken(allocator, 1), taken(allocator, 12 * MIB - 5)
    taken(allocator, 513)
    allocator.free(small)
    allocator.free(large)
    allocator.empty_cache()
    taken(allocator, 2 * MIB)
    # WHEN asked THEN the books say so
    of_large, of_small = allocator.tallies
    assert [books(tally) for tally in of_small.all()] == [
        (2, 1, 2),
        (512 + 1024, 512, 512 + 1024),
        (514, 1, 514),
        (1, 0, 1),
        (SMALL_SEGMENT, 0, SMALL_SEGMENT),
    ]
    assert [books(tally) for tally in of_large.all()] == [
        (2, 1, 1),
        (14 * MIB, 12 * MIB, 12 * MIB),
        (14 * MIB - 5, 12 * MIB - 5, 12 * MIB - 5),
        (2, 1, 1),
        (12 * MIB + MIDDLE_SEGMENT, 12 * MIB, MIDDLE_SEGMENT),
    ]
    now = 1024 + 2 * MIB, SMALL_SEGMENT + MIDDLE_SEGMENT
    peak = 12 * MIB + 512 + 1024, SMALL_SEGMENT + MIDDLE_SEGMENT
    assert allocator.stats == allocator.pools[DEFAULT_POOL].stats == Stats(*now, *peak, 2)
    # WHEN peaks begin again THEN at what is held
    allocator.reset_peaks()
    assert allocator.stats == allocator.pools[DEFAULT_POOL].stats == Stats(*now, *now, 2)
    assert [tally.peak for tally in of_small.all()] == [1, 1024, 513, 1, SMALL_SEGMENT]
    assert [tally.peak for tally in of_large.all()] == [1, 2 * MIB, 2 * MIB, 1, MIDDLE_SEGMENT]
    # AND when totals do THEN what was taken and given back before is told no more
    assert [(tally.from_taken, tally.from_freed) for each in allocator.tallies for tally in each.all()] == [(0, 0)] * 10
    allocator.reset_totals()
    for each in allocator.tallies:
        assert all((tally.from_taken, tally.from_freed) == (tally.taken, tally.freed) for tally in each.all())


def test_a_segment_is_unmapped_when_all_of_it_is_free_nobody_keeps_it_and_nothing_is_captured() -> None:
    # GIVEN a free segment, one with a live block in front, one with a live block behind, one of a pool that is kept
    device = Device()
    allocator = CachingAllocator(device)
    free, front, behind = taken(allocator, 1, 0), taken(allocator, 1, 16), [taken(allocator, 1, 32) for _ in range(2)]
    pool = allocator.retain(allocator.new_pool_id())
    private = taken(allocator, 1, 0, pool.id)
    for address in (free, behind[0], private):
        allocator.free(address)
    # WHEN the cache is emptied within a capture THEN nothing goes
    allocator.captures_underway += 1
    allocator.empty_cache()
    assert len(device.sizes) == 4
    # AND after it the first
    allocator.captures_underway -= 1
    allocator.empty_cache()
    assert sorted(device.sizes) == sorted([front, behind[0], private])
    assert allocator.failed == 0
    check(allocator)


def test_what_comes_back_within_a_request_waits_for_its_end() -> None:
    # GIVEN a live block, a device that gives it back while it maps, and again while it unmaps
    device = Device()
    allocator = CachingAllocator(device)
    seen: list[tuple[str, bool]] = []
    mapped, unmapped = device.map, device.unmap

    def mapping(nbytes: int) -> int | None:
        allocator.free(first)
        seen.append(("map", allocator.is_live(first)))
        return mapped(nbytes)

    def unmapping(address: int) -> None:
        allocator.free(second)
        seen.append(("unmap", allocator.is_live(second)))
        unmapped(address)

    first, second = taken(allocator, 1), taken(allocator, 1)
    # WHEN memory is asked for and the cache emptied THEN each is live until then, and gone afterwards
    device.map = mapping  # type: ignore[method-assign]
    large = taken(allocator, 12 * MIB)
    assert not allocator.is_live(first)
    device.unmap = unmapping  # type: ignore[method-assign]
    allocator.free(large)
    allocator.empty_cache()
    assert not allocator.is_live(second)
    assert seen == [("map", True), ("unmap", True)]
    check(allocator)
    device.map, device.unmap = mapped, unmapped  # type: ignore[method-assign]
    # AND what comes back while something does comes after it
    order: list[int] = []
    third, fourth = taken(allocator, 1, 16), taken(allocator, 1, 16)

    def heard(event: PoolEvent) -> None:
        order.append(event.address)
        if event.address == third:
            allocator.free(fourth)
            order.append(0)

    allocator.listeners.append(heard)
    allocator.free(third)
    assert order == [third, 0, fourth]
    check(allocator)


def test_what_finds_no_room_is_counted_and_leaves_no_trace() -> None:
    # GIVEN a device with room for one small segment, and who asks before it maps
    asked: list[int] = []
    allocator = CachingAllocator(Device(SMALL_SEGMENT))
    heard: list[PoolEvent] = []
    allocator.listeners.append(heard.append)
    kept = allocator.alloc(SMALL, before_map=lambda: asked.append(1))
    assert kept == START
    # WHEN cached memory serves THEN nobody is asked
    assert allocator.alloc(SMALL, before_map=lambda: asked.append(2)) == START + SMALL
    # AND where there is none it is, and counted
    assert allocator.alloc(1, before_map=lambda: asked.append(3)) is None
    assert allocator.alloc(1) is None
    assert (asked, allocator.failed, allocator.stats.live_blocks) == ([1, 3], 2, 2)
    assert heard == [
        PoolEvent(0, "default", PoolAction.SEGMENT_ALLOC, START, SMALL_SEGMENT),
        PoolEvent(1, "default", PoolAction.ALLOC, START, SMALL),
        PoolEvent(2, "default", PoolAction.ALLOC, START + SMALL, SMALL),
    ]
    # AND a free within it has come back when it returns
    allocator.free(kept)
    assert not allocator._busy
    assert not allocator._late
    check(allocator)


def test_one_that_begins_anew_serves_nothing_that_others_left() -> None:
    # GIVEN a segment with a live block and a free one, and another without any live one
    device = Device()
    allocator = CachingAllocator(device)
    kept, free, other = taken(allocator, 512), taken(allocator, 512), taken(allocator, 2 * MIB)
    allocator.free(free)
    allocator.free(other)
    # WHEN it begins anew
    allocator.begin_anew()
    # THEN the unused segment is unmapped, and neither what was free nor what comes back later serves
    first = taken(allocator, 512)
    allocator.free(kept)
    assert len({address // SMALL_SEGMENT for address in (kept, first, taken(allocator, 512))}) == 2
    assert first // SMALL_SEGMENT != kept // SMALL_SEGMENT
    # AND once nothing lives there, that segment goes like others
    reserved = allocator.stats.reserved
    allocator.empty_cache()
    assert allocator.stats.reserved == reserved - SMALL_SEGMENT
    check(allocator)
