"""Phantom memory: addresses that a capture may record, with nothing behind them.

The two sides lie in disjoint ranges, laid out as on a GPU (``driver/phantom_layout.py``). A freed address is used again
within the capture, in parts if need be, as the real allocator does; which freed piece is taken depends on sizes and
order only, so both sides choose alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from paramgraph_kit.driver.api import RawAllocation
from paramgraph_kit.driver.phantom_layout import Layout

from .allocator import ROUND
from .under_way import Capture

_BASE = 1 << 45  # far below where the system maps anything, far above any scalar
_SIDE = 1 << 43


class _Piece:
    """A run of phantom bytes; ``order`` tells equal sizes apart alike on both sides."""

    __slots__ = ("address", "order", "size")

    def __init__(self, address: int, size: int, order: int) -> None:
        self.address = address
        self.size = size
        self.order = order


class SimPhantom:
    """One side's phantom memory."""

    def __init__(self, side: int, reuse: bool = True) -> None:
        self.side = side
        self.reuse = reuse
        self.base = _BASE + side * _SIDE
        self.stop = self.base + _SIDE
        self._layout = Layout(self.base, _SIDE, side)
        self._count = 0
        self._live: dict[int, tuple[_Piece, RawAllocation]] = {}
        self._free: list[_Piece] = []
        self.allocations: list[RawAllocation] = []
        self.capture: Capture | None = None
        self.open = True

    def reserve(self, nbytes: int, residue: int = 0) -> int:
        """An address for an input; see ``driver.api.Phantom``. It is no allocation of the recording."""
        return self._layout.place(nbytes, residue)

    @property
    def starts(self) -> Sequence[int]:
        """Of all that was handed out first, in order."""
        return self._layout.starts

    def contains(self, address: int) -> bool:
        """Whether an address lies in this side's range."""
        return self.base <= address < self.stop

    def allocate(self, nbytes: int) -> int:
        """An address for a tensor made while recording, perhaps one that was freed before."""
        size = -(-nbytes // ROUND) * ROUND
        piece = self._reused(size) if self.reuse else None
        piece = piece or self._fresh(size)
        allocation = RawAllocation(piece.address, nbytes, self._position())
        self.allocations.append(allocation)
        self._live[piece.address] = (piece, allocation)
        return piece.address

    def free(self, address: int) -> None:
        """Note the death of an allocation; after the capture nobody counts."""
        if not self.open:
            return
        piece, allocation = self._live.pop(address)
        allocation.died = self._position()
        if self.reuse:
            self._free.append(piece)

    def close(self) -> None:
        """End of ``record``: later deaths are no part of the capture."""
        self.open = False

    def _position(self) -> int:
        return len(self.capture.nodes) if self.capture is not None else 0

    def _fresh(self, nbytes: int) -> _Piece:
        size = max(-(-nbytes // ROUND), 1) * ROUND
        self._count += 1
        return _Piece(self._layout.place(size), size, self._count)

    def _reused(self, size: int) -> _Piece | None:
        fitting = [p for p in self._free if p.size >= size]
        if not fitting:
            return None
        piece = min(fitting, key=lambda p: (p.size, p.order))
        self._free.remove(piece)
        if piece.size > size:
            self._count += 1
            self._free.append(_Piece(piece.address + size, piece.size - size, self._count))
        return _Piece(piece.address, size, piece.order)
