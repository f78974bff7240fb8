"""The caching allocator: CUDA's rules of rounding, pools, splitting and reuse, over addresses.

Requests are rounded to 512 bytes. Up to 1 MiB they come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB,
above from segments of their own size rounded to 2 MiB. A free block serves the stream that it was allocated on, and
the pool that it belongs to, and nobody else; the smallest fitting one is taken, split if enough is left, and merged
with its free neighbours when it comes back. Needs neither torch nor the arena: whoever maps segments is passed in.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from paramgraph_kit.trace.model import PoolAction, PoolEvent

ROUND = 512
SMALL = 1 << 20  # requests up to this come from small segments
SMALL_SEGMENT = 2 << 20
LARGE_FROM = 10 << 20  # requests from this on get a segment of their own
MIDDLE_SEGMENT = 20 << 20
LARGE_ROUND = 2 << 20

MOST_KNOWN = 1 << 14  # requests of which it is known what they got

NOT_IN_USE = (
    'it->second->use_count > 0 INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":2799, please '
    "report a bug to PyTorch. "
)

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class Backing(Protocol):
    """Whoever maps and unmaps segments: the arena, or a stand-in for tests of the rules alone."""

    def map(self, nbytes: int) -> int | None:
        """An address, or None if the device is full."""

    def unmap(self, address: int) -> None:
        """Give a segment back."""


class Block:
    """A piece of a segment, live or free; its neighbours by address are ``before`` and ``after``."""

    __slots__ = ("address", "after", "before", "live", "requested", "segment", "shared", "size")

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment = segment
        self.address = address
        self.size = size
        self.requested = 0
        self.live = False
        self.shared = False  # other streams were told to use it
        self.before: Block | None = None
        self.after: Block | None = None


class Segment:
    """Memory mapped in one piece, for one pool, one stream and one size class."""

    __slots__ = ("address", "first", "free", "pool", "size", "small", "stream")

    def __init__(self, pool: Pool, stream: int, small: bool, address: int, size: int) -> None:
        self.pool = pool
        self.stream = stream
        self.small = small
        self.address = address
        self.size = size
        self.free = pool.free_list(stream, small)
        self.first = Block(self, address, size)

    def blocks(self) -> Iterator[Block]:
        """Its blocks, by address."""
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.after


class Tally:
    """How much was taken and given back in all, and at most held at once, of one kind of thing."""

    __slots__ = ("freed", "from_freed", "from_taken", "peak", "taken")

    def __init__(self) -> None:
        self.taken = self.freed = self.peak = 0
        self.from_taken = self.from_freed = 0  # from where what was taken and given back is told

    def take(self, amount: int) -> None:
        """Count what was taken."""
        self.taken += amount
        self.peak = max(self.peak, self.taken - self.freed)


class Tallies:
    """Of the small or the large requests: blocks and segments, their bytes, and the bytes that were asked for."""

    __slots__ = ("blocks", "bytes", "requested", "reserved", "segments")

    def __init__(self) -> None:
        self.blocks, self.bytes, self.requested = Tally(), Tally(), Tally()
        self.segments, self.reserved = Tally(), Tally()

    def all(self) -> tuple[Tally, ...]:
        """Each of them."""
        return self.blocks, self.bytes, self.requested, self.segments, self.reserved


@dataclass(slots=True)
class Stats:
    """Bytes now and at most: in live blocks and in segments."""

    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    live_blocks: int = 0

    def allocate(self, size: int) -> None:
        """Count a block that became live."""
        self.allocated += size
        self.live_blocks += 1
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def reserve(self, size: int) -> None:
        """Count a segment mapped (or unmapped, if negative)."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)


class Pool:
    """The default pool or a private one; blocks never move between pools."""

    __slots__ = ("_free", "id", "name", "segments", "stats", "users")

    def __init__(self, pool_id: PoolId, name: str) -> None:
        self.id = pool_id
        self.name = name
        self.users = 0  # graphs and contexts that keep a private pool reserved
        self.stats = Stats()
        self.segments: dict[int, Segment] = {}
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = {}

    def free_list(self, stream: int, small: bool) -> list[tuple[int, int]]:
        """The free blocks of one stream and size class as sorted (size, address)."""
        return self._free.setdefault((stream, small), [])

    def set_aside(self) -> None:
        """Let what is free in its segments, or comes back to them, serve nobody any more."""
        self._free = {}


class CachingAllocator:
    """Addresses in, addresses out; see the module for the rules."""

    def __init__(self, backing: Backing, name: Callable[[PoolId], str] | None = None) -> None:
        self._backing = backing
        self._lock = threading.RLock()
        self._busy = False
        self._late: deque[int] = deque()  # frees that a garbage collection delivered inside alloc or free
        self._kept: list[Block] = []  # freed in a capture, and used on other streams: they serve again after it
        self.blocks: dict[int, Block] = {}  # every block, live or free, by address
        self.pools: dict[PoolId, Pool] = {DEFAULT_POOL: Pool(DEFAULT_POOL, "default")}
        self.stats = Stats()
        self.tallies = Tallies(), Tallies()  # of large requests, of small ones
        self.failed = 0  # requests that found no room
        self.listeners: list[Callable[[PoolEvent], None]] = []
        self.captures_underway = 0  # while positive no request has the unused unmapped: cudaFree may be forbidden
        self.left_recording: list[PoolId] = []  # of captures whose end has failed: torch goes on recording
        self._time = 0
        self.requests = 0  # of all that were served,
        self._served: deque[tuple[int, int]] = deque(maxlen=MOST_KNOWN)  # which memory the last ones got
        self._private = 0

    # pools

    def new_pool_id(self, mine: bool = False) -> PoolId:
        """A fresh pool id; ``(0, n)`` for a handle that a user asked for, ``(n, 0)`` for a capture's own."""
        self._private += 1
        return (0, self._private) if mine else (self._private, 0)

    def retain(self, pool_id: PoolId) -> Pool:
        """Keep a private pool's memory reserved until ``release``."""
        with self._lock:
            pool = self.pools.get(pool_id)
            if pool is not None and not pool.users and pool_id != DEFAULT_POOL:
                raise RuntimeError(NOT_IN_USE)  # that of a graph that was reset
            if pool is None:
                pool = self.pools[pool_id] = Pool(pool_id, f"private {pool_id[0] or pool_id[1]}")
            pool.users += 1
            return pool

    def release(self, pool_id: PoolId) -> None:
        """One user fewer; an unused pool's free segments go back at the next ``empty_cache``."""
        with self._lock:
            pool = self.pools.get(pool_id)
            if pool is not None:
                pool.users -= 1

    # blocks

    def alloc(
        self,
        nbytes: int,
        stream: int = 0,
        pool_id: PoolId = DEFAULT_POOL,
        before_map: Callable[[], None] | None = None,
    ) -> int | None:
        """The address of a block of at least ``nbytes`` (more than 0), or None if the device is full.

        ``before_map`` is called where no cached block serves and the device itself has to be asked; it may raise.
        """
        with self._lock:
            self._busy = True
            try:
                address = self._alloc(nbytes, stream, self.pools[pool_id], before_map)
            finally:
                self._busy = False
            if self._late:
                self._drain()
            return address

    def _alloc(self, nbytes: int, stream: int, pool: Pool, before_map: Callable[[], None] | None) -> int | None:
        self._give_kept()
        size = ROUND if nbytes < ROUND else -(-nbytes // ROUND) * ROUND
        small = size <= SMALL
        free = pool.free_list(stream, small)
        i = bisect_left(free, (size, 0))
        if i < len(free):
            block = self.blocks[free.pop(i)[1]]
        else:
            if before_map is not None:
                before_map()
            fresh = self._segment(size, stream, small, pool)
            if fresh is None:
                return None
            block = fresh.first
        rest = block.size - size
        if rest >= ROUND if small else rest > SMALL:
            tail = Block(block.segment, block.address + size, rest)
            tail.before, tail.after = block, block.after
            if block.after is not None:
                block.after.before = tail
            block.after = tail
            block.size = size
            self.blocks[tail.address] = tail
            insort(free, (rest, tail.address))
        block.live = True
        self.requests += 1
        self._served.append((address := block.address, address + size))
        block.requested = nbytes
        self.stats.allocate(block.size)
        pool.stats.allocate(block.size)
        tallies = self.tallies[small]
        tallies.blocks.take(1)
        tallies.bytes.take(block.size)
        tallies.requested.take(nbytes)
        if self.listeners:
            self._tell(pool, PoolAction.ALLOC, block.address, block.size)
        return block.address

    def _segment(self, size: int, stream: int, small: bool, pool: Pool) -> Segment | None:
        if small:
            total = SMALL_SEGMENT
        elif size < LARGE_FROM:
            total = MIDDLE_SEGMENT
        else:
            total = -(-size // LARGE_ROUND) * LARGE_ROUND
        address = self._backing.map(total)
        if address is None:
            if not self.captures_underway:
                self._release_cached()
                address = self._backing.map(total)
            if address is None:
                self.failed += 1
                return None
        segment = Segment(pool, stream, small, address, total)
        pool.segments[address] = segment
        self.blocks[address] = segment.first
        self.stats.reserve(total)
        pool.stats.reserve(total)
        self.tallies[small].segments.take(1)
        self.tallies[small].reserved.take(total)
        if self.listeners:
            self._tell(pool, PoolAction.SEGMENT_ALLOC, address, total)
        return segment

    def free(self, address: int) -> None:
        """Take a block back; safe to call from a garbage collection at any point."""
        self._late.append(address)
        with self._lock:  # re-entrant: where this thread is inside alloc or free, that call drains the queue
            if not self._busy:
                self._drain()

    def _drain(self) -> None:
        while self._late:
            self._busy = True
            try:
                self._free(self._late.popleft())
            finally:
                self._busy = False

    def _free(self, address: int) -> None:
        block = self.blocks[address]
        if not block.live:
            raise ValueError(f"block {address:#x} is not live: it was freed twice")
        segment = block.segment
        pool = segment.pool
        for stats in (self.stats, pool.stats):
            stats.allocated -= block.size
            stats.live_blocks -= 1
        tallies = self.tallies[segment.small]
        tallies.blocks.freed += 1
        tallies.bytes.freed += block.size
        tallies.requested.freed += block.requested
        if self.listeners:
            self._tell(pool, PoolAction.FREE, address, block.size)
        if block.shared and self.captures_underway:  # whether another stream is done with it, no capture may ask
            self._kept.append(block)
        else:
            self._give(block)

    def _give_kept(self) -> None:
        while self._kept and not self.captures_underway:
            self._give(self._kept.pop())

    def _give(self, block: Block) -> None:
        """Let a block serve again."""
        block.live = block.shared = False
        free = block.segment.free
        after = block.after
        if after is not None and not after.live:
            del free[bisect_left(free, (after.size, after.address))]
            del self.blocks[after.address]
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        before = block.before
        if before is not None and not before.live:
            del free[bisect_left(free, (before.size, before.address))]
            del self.blocks[block.address]
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            block = before
        insort(free, (block.size, block.address))

    # segments

    def empty_cache(self) -> None:
        """Unmap every segment without live blocks, except those of private pools in use."""
        with self._lock:
            self._give_kept()
            self._busy = True
            try:
                self._release_cached()
            finally:
                self._busy = False
            self._drain()

    def begin_anew(self) -> None:
        """Unmap what is unused, and serve from new segments from now on, as a process does that has none yet."""
        self.empty_cache()
        for pool in list(self.pools.values()):
            pool.set_aside()

    def unused(self) -> Iterator[tuple[Pool, Segment]]:
        """Segments without live blocks, but for private pools in use, and while capturing for the default one."""
        for pool in list(self.pools.values()):
            if not (self.captures_underway if pool.id == DEFAULT_POOL else pool.users):
                for segment in list(pool.segments.values()):
                    if not segment.first.live and segment.first.after is None:
                        yield pool, segment

    def _release_cached(self) -> None:
        for pool, segment in self.unused():
            block = segment.first
            del segment.free[bisect_left(segment.free, (block.size, block.address))]
            del self.blocks[block.address]
            del pool.segments[segment.address]
            self.tallies[segment.small].segments.freed += 1
            self.tallies[segment.small].reserved.freed += segment.size
            self.stats.reserve(-segment.size)
            pool.stats.reserve(-segment.size)
            self._backing.unmap(segment.address)
            if self.listeners:
                self._tell(pool, PoolAction.SEGMENT_FREE, segment.address, segment.size)
        for pool in list(self.pools.values()):
            if not pool.segments and not pool.users and pool.id != DEFAULT_POOL:
                del self.pools[pool.id]

    def reset_peaks(self) -> None:
        """Start the peaks again from what is held now."""
        for stats in (self.stats, *(pool.stats for pool in self.pools.values())):
            stats.peak_allocated, stats.peak_reserved = stats.allocated, stats.reserved
        for tally in (*self.tallies[0].all(), *self.tallies[1].all()):
            tally.peak = tally.taken - tally.freed

    def reset_totals(self) -> None:
        """Tell what was taken and given back in all from now on."""
        for tally in (*self.tallies[0].all(), *self.tallies[1].all()):
            tally.from_taken, tally.from_freed = tally.taken, tally.freed

    def share(self, address: int, stream: int) -> None:
        """Note that another stream uses the block at an address, as ``record_stream`` says."""
        block = self.find(address)
        if block is not None and block.segment.stream != stream:
            block.shared = True

    def find(self, address: int) -> Block | None:
        """The block that holds an address, live or free, or None."""
        with self._lock:
            for pool in self.pools.values():
                for segment in pool.segments.values():
                    if segment.address <= address < segment.address + segment.size:
                        for block in segment.blocks():
                            if address < block.address + block.size:
                                return block
        return None

    def served(self, address: int, since: int) -> bool:
        """Whether memory at an address has served a request after so many of all; one too old counts as one."""
        later = self.requests - since
        return later > len(self._served) or any(
            first <= address < end for first, end in islice(reversed(self._served), later)
        )

    def is_taken(self, address: int) -> bool:
        """Whether a live block begins at an address."""
        block = self.blocks.get(address)
        return block is not None and block.live

    def is_live(self, address: int) -> bool:
        """Whether an address lies in a live block."""
        block = self.find(address)
        return block is not None and block.live

    def _tell(self, pool: Pool, action: PoolAction, address: int, size: int) -> None:
        event = PoolEvent(self._time, pool.name, action, address, size)
        self._time += 1
        for listener in self.listeners:
            listener(event)
