"""The twin's memory: what ``torch.cuda.memory`` counts and gives, of the simulated allocator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paramgraph_kit.trace.wording import bytes_text

from .allocator import DEFAULT_POOL, PoolId
from .errors import missing
from .machine import machine
from .stream import Stream, current_stream


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

    def __getattr__(self, name: str) -> Any:
        raise missing("MemPool", name)

    def __del__(self) -> None:
        if "_id" in vars(self):
            machine().allocator.release(self._id)


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Allocate from ``pool`` in the body of ``with``."""
    pools = machine().user_pools
    pools.append(pool.id)
    try:
        yield
    finally:
        pools.pop()


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks."""
    return machine().allocator.stats.allocated


def memory_reserved(device: Any = None) -> int:
    """Bytes in segments of the caching allocator."""
    return machine().allocator.stats.reserved


def max_memory_allocated(device: Any = None) -> int:
    """Peak of ``memory_allocated``."""
    return machine().allocator.stats.peak_allocated


def max_memory_reserved(device: Any = None) -> int:
    """Peak of ``memory_reserved``."""
    return machine().allocator.stats.peak_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peaks again from now."""
    machine().allocator.reset_peaks()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing: how often memory was asked for and freed in all is not counted here."""


# The old names, which torch still has.
memory_cached, max_memory_cached = memory_reserved, max_memory_reserved
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def memory_stats(device: Any = None) -> dict[str, int]:
    """What the allocator counts, under ``torch.cuda.memory_stats``'s names of all its pools together."""
    stats = machine().allocator.stats
    live = {"current": stats.allocated, "peak": stats.peak_allocated}
    whole = {"current": stats.reserved, "peak": stats.peak_reserved}
    kinds = {"allocated_bytes": live, "active_bytes": live, "reserved_bytes": whole}
    return {f"{kind}.all.{name}": value for kind, values in kinds.items() for name, value in values.items()}


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The same, nested by the parts of the names."""
    found: dict[str, Any] = {}
    for name, value in memory_stats().items():
        kind, pool, which = name.split(".")
        found.setdefault(kind, {}).setdefault(pool, {})[which] = value
    return found


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The same as text."""
    lines = [f"{name}: {bytes_text(value)}" for name, value in memory_stats().items()]
    return "\n".join(["memory of the simulated device", *lines])


def get_allocator_backend() -> str:
    """The allocator that is simulated."""
    return "native"


def caching_allocator_alloc(size: int, device: Any = None, stream: Stream | None = None) -> int:
    """The address of ``size`` bytes, which ``caching_allocator_delete`` frees."""
    address, free = machine().allocate(size, stream or current_stream())
    _raw[address] = free
    return address


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free what ``caching_allocator_alloc`` gave."""
    _raw.pop(mem_ptr)(mem_ptr)


_raw: dict[int, Any] = {}


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let tensors have this part of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    machine().arena.fraction = fraction


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What ``set_per_process_memory_fraction`` set, 1 if nothing did."""
    return machine().arena.fraction


def ipc_collect() -> None:
    """Nothing: no other process holds memory of this device."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    arena = machine().arena
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
            blocks = [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested if block.live else 0,
                    "state": "active_allocated" if block.live else "inactive",
                }
                for block in segment.blocks()
            ]
            live = sum(b.size for b in segment.blocks() if b.live)
            found.append(
                {
                    "device": 0,
                    "address": segment.address,
                    "total_size": segment.size,
                    "allocated_size": live,
                    "active_size": live,
                    "stream": segment.stream,
                    "segment_type": "small" if segment.small else "large",
                    "segment_pool_id": (0, 0) if pool.id == DEFAULT_POOL else pool.id,
                    "blocks": blocks,
                }
            )
    return sorted(found, key=lambda s: int(s["address"]))
