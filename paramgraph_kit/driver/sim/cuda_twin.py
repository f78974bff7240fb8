"""The simulated twin of ``torch.cuda``: the same names, so that one notebook cell runs on both.

It is also the module behind ``torch.sim``. What needs a clock or real hardware is not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .allocator import DEFAULT_POOL, PoolId
from .capture import CUDAGraph, recover
from .capturing import StreamContext, empty_cache, graph, graph_pool_handle, stream, synchronize
from .graphed import make_graphed_callables
from .machine import DEVICE_NAME, machine
from .stream import (
    Event,
    Stream,
    current_stream,
    default_stream,
    get_sync_debug_mode,
    set_current,
    set_sync_debug_mode,
)

__all__ = [
    "CUDAGraph",
    "Event",
    "MemPool",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "empty_cache",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "make_graphed_callables",
    "recover",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
]


def set_stream(stream: Stream) -> None:
    """Make ``stream`` current on this thread."""
    set_current(stream)


class MemPool:
    """A private pool that ``use_mem_pool`` allocates from; its memory stays reserved while this object lives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise NotImplementedError("the simulated MemPool takes no allocator and no options")
        self._id = machine().allocator.new_pool_id()
        machine().allocator.retain(self._id)

    @property
    def id(self) -> PoolId:
        """The pool's id, as ``graph(pool=)`` takes it."""
        return self._id

    def __del__(self) -> None:
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


def is_current_stream_capturing() -> bool:
    """Whether the current stream is in a capture."""
    return current_stream().capture is not None


# memory


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


def memory_stats(device: Any = None) -> dict[str, int]:
    """What the allocator counts, under ``torch.cuda.memory_stats``'s names of all its pools together."""
    stats = machine().allocator.stats
    live = {"current": stats.allocated, "peak": stats.peak_allocated}
    whole = {"current": stats.reserved, "peak": stats.peak_reserved}
    kinds = {"allocated_bytes": live, "active_bytes": live, "reserved_bytes": whole}
    return {f"{kind}.all.{name}": value for kind, values in kinds.items() for name, value in values.items()}


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    arena = machine().arena
    return arena.capacity - arena.mapped, arena.capacity


def memory_snapshot() -> list[dict[str, Any]]:
    """Segments and their blocks, with the keys of ``torch.cuda.memory_snapshot``."""
    found = []
    for pool in machine().allocator.pools.values():
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


# random numbers


SEED_IN_CAPTURE = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the "
    "original seed."
)


def manual_seed(seed: int) -> None:
    """Seed the device's generator; in a capture only the seed in use is accepted, and does nothing."""
    generator = machine().generator
    if current_stream().capture is None:
        generator.manual_seed(int(seed))
    elif int(seed) != generator.seed:
        raise RuntimeError(SEED_IN_CAPTURE)


def manual_seed_all(seed: int) -> None:
    """Seed the generator of every simulated device: there is one."""
    manual_seed(seed)


def initial_seed() -> int:
    """The seed in use."""
    return machine().generator.seed


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Seed and offset, 16 bytes in a CPU tensor; in a capture, how far that has moved, as CUDA's [H100, torch 2.11]."""
    generator, capture = machine().generator, current_stream().capture
    state = generator.state() if capture is None else generator.state(capture.random_offset)
    return torch.tensor(list(state), dtype=torch.uint8, device="cpu")


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore what ``get_rng_state`` returned; in a capture for what it records from here on."""
    generator, capture = machine().generator, current_stream().capture
    if capture is None:
        generator.set_state(bytes(new_state.tolist()))
    else:
        capture.random_offset = generator.offset_of(bytes(new_state.tolist()))


# the device


def get_device_name(device: Any = None) -> str:
    """How this device is labelled."""
    return "simulated device"


def is_available() -> bool:
    """True: this module exists only where the device does."""
    return True


def is_initialized() -> bool:
    """True."""
    return True


def init() -> None:
    """Nothing to do."""


def device_count() -> int:
    """One."""
    return 1


def current_device() -> int:
    """Zero."""
    return 0


# torch asks, where it keeps random states over a checkpoint's second run.
_initialized = True


class device:  # noqa: N801 - as torch.cuda calls it
    """``torch.cuda.device``: the only device there is, for the body of ``with``."""

    def __init__(self, device: Any) -> None:
        set_device(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def set_device(device: Any) -> None:
    """Accepts the only device there is."""
    if torch.device(DEVICE_NAME if device is None else device if isinstance(device, (str, torch.device)) else 0).index:
        raise ValueError(f"there is one simulated device, not {device}")


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast`` may use."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return False


def __getattr__(name: str) -> Any:
    if name in torch.cuda.__all__:
        raise AttributeError(f"the simulated device has no torch.cuda.{name}: leave it out, or use a GPU")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
