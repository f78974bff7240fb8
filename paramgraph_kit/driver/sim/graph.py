"""Captured nodes: what a kernel would be launched with, as packed bytes, and how it runs from those bytes.

A parameter buffer holds the tensors' pointers first (little-endian, one 8-byte word each: arguments in order, then new
outputs, then the generator's seed and offset for random operations), then sizes and strides, then scalars. A replay
takes every address from the bytes, so patching a word moves what is read or written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.tensors import Bits, lazily
from paramgraph_kit.trace.model import NodeKind

from .arena import Arena
from .errors import asserted
from .not_known import ASSERTED, not_known

HOST_COPIES = ("memcpy from host", "memcpy to host")  # names of nodes begin so, as on a GPU

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, Bits]  # size, stride, dtype, lazy bits of an operand

# (operands, seed and offset or None) -> None: executes the operation on CPU tensors over device memory
Work = Callable[[Sequence[torch.Tensor], tuple[int, int] | None], None]


class SimNode:
    """One node of a captured graph."""

    __slots__ = (
        "_epoch",
        "_pointers",
        "_views",
        "deps",
        "kind",
        "layouts",
        "name",
        "origin",
        "parameters",
        "random_delta",
        "work",
    )

    def __init__(
        self,
        kind: NodeKind,
        name: str,
        pointers: Sequence[int],
        layouts: Sequence[Layout],
        scalars: bytes,
        work: Work,
        deps: tuple[int, ...],
        random_delta: int | None = None,
        random_state: int = 0,
    ) -> None:
        words = list(pointers)
        if random_delta is not None:
            words += [random_state, random_state + 8]
        shapes = [n for size, stride, *_ in layouts for n in (*size, *stride)]
        self.parameters = bytearray(struct.pack(f"<{len(words)}Q{len(shapes)}q", *words, *shapes))
        if random_delta is not None:
            self.parameters += struct.pack("<Q", random_delta)
        self.parameters += scalars
        self.kind = kind
        self.name = name
        self.layouts = tuple(layouts)
        self.work = work
        self.deps = deps
        self.random_delta = random_delta
        self.origin: tuple[str, int] | None = None  # the line that recorded it, generated or the user's
        self._pointers: tuple[int, ...] | None = None
        self._views: list[torch.Tensor] = []
        self._epoch = -1

    @property
    def addressed(self) -> int:
        """How many bytes of its parameters, from the first on, a replay takes addresses from."""
        return 8 * (len(self.layouts) + 2 * (self.random_delta is not None))

    @property
    def overwrites(self) -> int | None:
        """Which operand it writes over and does not read, where that is plain."""
        if self.name.endswith("out"):  # an overload whose last argument is
            return len(self.layouts) - 1
        copies = self.kind == NodeKind.MEMCPY and len(self.layouts) > 1
        return 0 if copies or self.kind == NodeKind.MEMSET or self.name in ("copy", "fill") else None

    def copy(self) -> SimNode:
        """The same node with a parameter buffer of its own, to be patched."""
        twin = object.__new__(SimNode)
        for name in ("kind", "name", "layouts", "work", "deps", "random_delta", "origin"):
            setattr(twin, name, getattr(self, name))
        twin.parameters = bytearray(self.parameters)
        twin._pointers, twin._views, twin._epoch = None, [], -1
        return twin

    def run(self, arena: Arena) -> None:
        """Execute from the packed bytes.

        Raises:
            torch.AcceleratorError: code 700, an address is not device memory.
        """
        parameters = self.parameters
        n = len(self.layouts)
        pointers = struct.unpack_from(f"<{n}Q", parameters)
        # The host's memory comes and goes without the arena's knowing.
        if pointers != self._pointers or self._epoch != arena.epoch or arena.coherent:
            self._views = [
                lazily(arena.view(address, size, stride, dtype), bits)
                for address, (size, stride, dtype, bits) in zip(pointers, self.layouts, strict=True)
            ]
            self._pointers, self._epoch = pointers, arena.epoch
        state = None
        if self.random_delta is not None:
            seed_at, offset_at = struct.unpack_from("<2Q", parameters, 8 * n)
            (seed,) = struct.unpack("<Q", arena.read(seed_at, 8))
            (offset,) = struct.unpack("<Q", arena.read(offset_at, 8))
            state = (seed, offset + self.random_delta)
        try:
            self.work(self._views, state)
        except (NotImplementedError, torch.AcceleratorError):
            raise  # the former: what only CUDA computes says so
        except (IndexError, RuntimeError) as found:
            not_known(ASSERTED)
            error = asserted(found)
        else:
            return
        try:
            raise error  # by itself, as CUDA's: not while another one is handled
        finally:
            del error  # with it this frame would stay


def pack_scalar(value: Any) -> bytes:
    """A non-tensor argument as it lies in a parameter buffer: 8 bytes a number, so that words stay aligned."""
    if isinstance(value, bool):
        return struct.pack("<q", value)
    if isinstance(value, int):
        return struct.pack("<Q", value % (1 << 64))
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<2d", value.real, value.imag)
    if isinstance(value, (list, tuple)):
        return b"".join(pack_scalar(v) for v in value)
    if isinstance(value, torch.Tensor):  # a 0-d CPU tensor: its value is baked
        return pack_scalar(value.item())
    return b""  # None, dtypes, layouts, strings: they choose the kernel
