"""The device's random numbers: a seed and an offset, as CUDA's Philox generator has.

What most operations draw are CUDA's own numbers (``philox.py``); every other one draws from the CPU kernel's generator,
seeded from (seed, offset). Each moves the offset on as far as CUDA's kernel would: by 4 for up to a million numbers. So
a graph's node needs only its distance from the offset at launch, eager and replayed runs draw the same numbers, and
``get_rng_state`` is 16 bytes, like CUDA's. In graphs the kernels read seed and offset from device memory, through
pointers in their parameters, as CUDA's do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import torch

STEP = 4
STATE_BYTES = 16
# A distribution's kernel runs in at most 8 blocks of 256 threads on each of the H200's 132 multiprocessors; a thread
# draws 4 numbers at a time, of 64 bits 2.
THREADS = 132 * 8 * 256
_WIDE = (torch.float64, torch.complex128)
# Those whose kernels take the same for whatever they draw.
_FIXED = {
    "bernoulli": 12,
    "bernoulli_.Tensor": 12,
    "poisson": 20,
    "binomial": 44,
    "_standard_gamma": 12,
    "_sample_dirichlet": 12,
}
OUTSIDE = "Offset increment outside graph capture encountered unexpectedly."
_MASK = (1 << 64) - 1

R = TypeVar("R")


def steps_of(operation: str, first: Any) -> int:
    """How far an operation moves a generator; ``first`` is its first operand, a tensor or a number."""
    if operation.startswith("randperm"):  # keys to sort by, and new ones where two are the same
        return STEP + -(-int(first) // STEP) * STEP if first else 0
    if operation in _FIXED:
        return _FIXED[operation]
    if not isinstance(first, torch.Tensor):
        return STEP
    if not first.numel():
        return 0
    at_once = THREADS * (2 if first.dtype in _WIDE else 4)
    return STEP * max(1, -(-first.numel() // at_once))


def mix(seed: int, offset: int) -> int:
    """One 63-bit seed out of two numbers (splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) >> 1


class Positioned(torch.Generator):
    """A generator of the CPU's that stands for one of the device's at a place in its sequence."""

    position: tuple[int, int]  # the device's seed and offset


class DeviceGenerator:
    """The state of a generator of the simulated device."""

    def __init__(self) -> None:
        self.place: int | None = None  # of its seed and offset in device memory
        self.seen: Any = None  # as torch's Python has it
        self.graphs: set[int] = set()  # that may draw from it, by id
        self.lent: list[tuple[int, Callable[[int], None]]] = []  # its memory for them, and how to free it
        self.seed = 67280421310721  # torch's default
        self.offset = 0
        self.left_in_capture = False  # a failed capture that drew numbers leaves torch's generator like this
        self._cpu = Positioned(device="cpu")

    def manual_seed(self, seed: int) -> None:
        """Start again from a seed."""
        self.seed = seed & _MASK
        self.offset = 0

    def advance(self, steps: int = STEP) -> int:
        """The offset for an eager operation, moving on by ``steps``."""
        if self.left_in_capture:
            raise RuntimeError(OUTSIDE)
        offset = self.offset
        self.offset += steps
        return offset

    def state(self, offset: int | None = None) -> bytes:
        """Seed and offset, 16 bytes."""
        return struct.pack("<QQ", self.seed, self.offset if offset is None else offset)

    def offset_of(self, state: bytes) -> int:
        """The offset in what ``state`` returned; another seed cannot be set in a capture."""
        seed, offset = struct.unpack("<QQ", state)
        self.check_seed(seed)
        found: int = offset
        return found

    def check_seed(self, seed: int) -> None:
        """Raise RuntimeError for another seed than the one in use."""
        if seed != self.seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )

    def set_state(self, state: bytes) -> None:
        """Restore what ``state`` returned."""
        self.seed, self.offset = struct.unpack("<QQ", state)

    def cpu_generator(self, seed: int, offset: int) -> torch.Generator:
        """The CPU generator, positioned for one operation."""
        self._cpu.position = seed, offset
        return self._cpu.manual_seed(mix(seed, offset))


class _UnderWay:
    position: tuple[int, int] | None = None  # of the operation without a generator that draws now


def drawn_at() -> tuple[int, int] | None:
    """Seed and offset of the operation under way that takes no generator."""
    return _UnderWay.position


def with_default_generator(seed: int, offset: int, run: Callable[[], R]) -> R:
    """Run an operation that takes no generator with the CPU's default one seeded for it, and put that back."""
    default = torch.default_generator
    saved = default.get_state()
    default.manual_seed(mix(seed, offset))
    _UnderWay.position = seed, offset
    try:
        return run()
    finally:
        _UnderWay.position = None
        default.set_state(saved)
