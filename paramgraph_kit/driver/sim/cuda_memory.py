"""The twin's memory: what ``torch.cuda.memory`` counts and gives, of the simulated allocator."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paramgraph_kit.trace.wording import bytes_text

from .allocator import DEFAULT_POOL, PoolId, Segment, Tally
from .errors import device_index, missing, require_device
from .first_use import in_use, use
from .machine import machine, started
from .not_known import not_known
from .stream import Stream, current_stream
from .under_way import moment, open_captures

USED = (
    "what comes next: a MemPool goes while a capture is under way, and on a GPU torch may end the process here. Keep "
    "it as long as the graphs"
)


class MemPool:
    """A private pool that ``use_mem_pool`` allocates from; its memory stays reserved while this object lives."""

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None or use_on_oom or no_split:
            raise NotImplementedError("the simulated MemPool takes no allocator and no options")
        self._id = machine().allocator.new_pool_id()
        machine().allocator.retain(self._id)

    @property
    def id(self) -> PoolId:
        """The pool's id, as ``graph(pool=)`` takes it."""
        return self._id

    def use_count(self) -> int:
        """How many hold the pool: this object, and each region and graph that allocates from it."""
        regions = sum(pool == self._id for *_, pool in machine().user_pools)
        return machine().allocator.pools[self._id].users + regions

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Its segments and their blocks."""
        return memory_snapshot(self._id, include_traces)

    def __getattr__(self, name: str) -> Any:
        raise missing("MemPool", name)

    def __del__(self) -> None:
        if "_id" in vars(self) and not self._ends():
            if open_captures():
                not_known(USED)
            machine().allocator.release(self._id)

    _ends = staticmethod(sys.is_finalizing)  # kept, as names of the module may be gone then


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Allocate from ``pool`` in the body of ``with``, on this thread."""
    pools = started().user_pools
    if any(pool.id == other for *_, other in pools):
        raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
    entry = threading.get_ident(), moment(), pool.id
    pools.append(entry)
    try:
        yield
    finally:
        pools.remove(entry)


def _look_for(device: Any) -> None:
    if (index := device_index(device)) > 0:
        raise RuntimeError(f"Invalid device argument {chr(index)}: did you call init?")  # torch writes a byte


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks."""
    _look_for(device)
    return machine().allocator.stats.allocated


def memory_reserved(device: Any = None) -> int:
    """Bytes in segments of the caching allocator."""
    _look_for(device)
    return machine().allocator.stats.reserved


def max_memory_allocated(device: Any = None) -> int:
    """Peak of ``memory_allocated``."""
    _look_for(device)
    return machine().allocator.stats.peak_allocated


def max_memory_reserved(device: Any = None) -> int:
    """Peak of ``memory_reserved``."""
    _look_for(device)
    return machine().allocator.stats.peak_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peaks again from now."""
    _look_for(device)
    started().allocator.reset_peaks()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Start what was taken and freed in all again from now."""
    _look_for(device)
    started().allocator.reset_totals()


# The old names, which torch still has.
memory_cached, max_memory_cached = memory_reserved, max_memory_reserved
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def memory_stats(device: Any = None) -> dict[str, int]:
    """What the allocator counts, under ``torch.cuda.memory_stats``'s names."""
    _look_for(device)
    found: dict[str, int] = {}
    _flatten("", memory_stats_as_nested_dict(), found)
    return dict(sorted(found.items()))


def _flatten(prefix: str, value: Any, found: dict[str, int]) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            _flatten(f"{prefix}.{name}" if prefix else name, each, found)
    else:
        found[prefix] = value


# Torch's names of what is counted. A block is active while it is allocated: no work here is ever outstanding.
_COUNTED = {
    "allocation": "blocks",
    "allocated_bytes": "bytes",
    "active": "blocks",
    "active_bytes": "bytes",
    "requested_bytes": "requested",
    "segment": "segments",
    "reserved_bytes": "reserved",
}


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The same, nested by the parts of the names."""
    if not in_use():
        return {}
    allocator = machine().allocator
    found: dict[str, Any] = {}
    for name, kind in _COUNTED.items():
        large, small = (getattr(tallies, kind) for tallies in allocator.tallies)
        parts = {"large_pool": _counts(large), "small_pool": _counts(small)}
        whole = {key: parts["large_pool"][key] + parts["small_pool"][key] for key in parts["large_pool"]}
        found[name] = {"all": whole, **parts}
    for name, stats in (
        ("allocated_bytes", "peak_allocated"),
        ("active_bytes", "peak_allocated"),
        ("reserved_bytes", "peak_reserved"),
    ):
        found[name]["all"]["peak"] = getattr(allocator.stats, stats)  # the parts have theirs at other times
    split = [_unused(segment) for pool in allocator.pools.values() for segment in pool.segments.values()]
    for name, place in (("inactive_split", 0), ("inactive_split_bytes", 1)):
        now = {key: sum(each[place] for each in split if each[2] is small) for key, small in _POOLS}
        found[name] = {key: _now(value) for key, value in {"all": sum(now.values()), **now}.items()}
    segments = found["segment"]["all"]
    none = {"oversize_allocations": _now(0), "oversize_segments": _now(0)}
    once = {"num_alloc_retries": allocator.failed, "num_ooms": allocator.failed, "num_sync_all_streams": 0}
    calls = {"num_device_alloc": segments["allocated"], "num_device_free": segments["freed"], "max_split_size": -1}
    return found | none | once | calls


_POOLS = (("large_pool", False), ("small_pool", True))


def _counts(tally: Tally) -> dict[str, int]:
    since = {"allocated": tally.taken - tally.from_taken, "freed": tally.freed - tally.from_freed}
    return {"current": tally.taken - tally.freed, "peak": tally.peak, **since}


def _now(value: int) -> dict[str, int]:
    return {"current": value, "peak": value, "allocated": value, "freed": 0}


def _unused(segment: Segment) -> tuple[int, int, bool]:
    """How many blocks of a segment are free, and their bytes, where it could not be given back; whether it is small."""
    free = [block.size for block in segment.blocks() if not block.live]
    if free == [segment.size]:
        free = []
    return len(free), sum(free), segment.small


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The same as text."""
    stats = machine().allocator.stats
    counted = {"allocated": (stats.allocated, stats.peak_allocated), "reserved": (stats.reserved, stats.peak_reserved)}
    lines = [f"{name}: {bytes_text(now)}, at most {bytes_text(most)}" for name, (now, most) in counted.items()]
    return "\n".join(["memory of the simulated device", *lines])


def get_allocator_backend() -> str:
    """The allocator that is simulated."""
    return "native"


def caching_allocator_alloc(size: int, device: Any = None, stream: Stream | None = None) -> int:
    """The address of ``size`` bytes, which ``caching_allocator_delete`` frees."""
    if not (stream is None or isinstance(stream, (Stream, int))):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.cuda.Stream` or `int` representing a pointer to a "
            "existing stream"
        )
    if not size:
        return 0
    address, free = started().allocate(size, stream or current_stream())
    _raw[address] = free
    return address


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free what ``caching_allocator_alloc`` gave."""
    if mem_ptr not in _raw and mem_ptr:
        raise RuntimeError(f"invalid device pointer: {mem_ptr:#x}")
    if mem_ptr:
        _raw.pop(mem_ptr)(mem_ptr)


_raw: dict[int, Any] = {}


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let tensors have this part of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    started().arena.fraction = fraction


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What ``set_per_process_memory_fraction`` set, 1 if nothing did."""
    return started().arena.fraction


def ipc_collect() -> None:
    """Nothing: no other process holds memory of this device."""
    use()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    require_device(device)
    arena = started().arena
    return arena.capacity - arena.mapped, arena.capacity


def device_memory_used(device: Any = None) -> int:
    """Bytes of the device in use."""
    return machine().arena.mapped


def memory_snapshot(mempool_id: PoolId | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Segments and their blocks, with the keys of ``torch.cuda.memory_snapshot``."""
    found = []
    for pool in machine().allocator.pools.values():
        if mempool_id is not None and pool.id != mempool_id:
            continue
        for segment in pool.segments.values():
            blocks: list[dict[str, Any]] = [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested if block.live else 0,
                    "frames": [],
                    "state": "active_allocated" if block.live else "inactive",
                }
                for block in segment.blocks()
            ]
            live = sum(b.size for b in segment.blocks() if b.live)
            requested = sum(b.requested for b in segment.blocks() if b.live)
            found.append(
                {
                    "device": 0,
                    "address": segment.address,
                    "total_size": segment.size,
                    "allocated_size": live,
                    "active_size": live,
                    "requested_size": requested,
                    "is_expandable": False,
                    "frames": [],
                    "stream": segment.stream,
                    "segment_type": "small" if segment.small else "large",
                    "segment_pool_id": (0, 0) if pool.id == DEFAULT_POOL else pool.id,
                    "blocks": blocks,
                }
            )
    return sorted(found, key=lambda s: int(s["address"]))
