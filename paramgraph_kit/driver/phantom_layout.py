"""Where phantom allocations lie: in the same order on both sides, and at no other likeness that could deceive.

A word is taken for a pointer if it means the same allocation and offset on both sides, and for a number if it is equal
on both. So an address must never be equal in a part of it that may be a number, nor must a difference of two:

- Bytes 1 and 2 of an address differ between the sides, and its upper half does. A number of two or more bytes that
  stands beside what is left of an older address (in a struct's padding, behind an array's last entry) makes an address
  of both, but these differ in the number's bytes if they mean the same allocation, and a number does not.
- The gaps differ, so that the distance between two allocations does: a kernel may be given an address and a distance.
"""

from __future__ import annotations

from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

GRAIN = 2 << 20  # what cudaMalloc aligns large blocks to
# A pointer just before or past an allocation (an end pointer, a pre-decremented iterator) falls into a gap.
GAP = 4 << 20
ROUND = 512  # the caching allocator's rounding: no kernel is promised more
# Of the second side's addresses modulo 2**24; those of the first are multiples of GRAIN. Whatever multiple of that is
# added or carried, bytes 1 and 2 are neither 0 nor 255.
_SHIFT, _MODULUS = 0x5A5A00, 1 << 24


class Layout:
    """Hands out one side's addresses in ``base .. base + size``, each with a gap on either side.

    >>> first, second = Layout(1 << 44, 1 << 40, 0), Layout(3 << 44, 1 << 40, 1)
    >>> hex(second.place(512) - first.place(512)), hex(second.place(512) - first.place(512))
    ('0x2000007a5a00', '0x2000009a5a00')
    """

    def __init__(self, base: int, size: int, side: int) -> None:
        self._origin = base + (side * _SHIFT - base) % _MODULUS
        self._gap = GAP + side * GRAIN
        self._stop = base + size
        self.end = self._origin  # of what was handed out
        self.starts: list[int] = []  # of what was handed out, in order: alike on both sides

    def place(self, nbytes: int, residue: int = 0) -> int:
        """An address for ``nbytes``, equal to ``residue`` modulo 512.

        Raises RefusedError where the range has no room left.
        """
        distance = -(-(self.end + self._gap - self._origin) // GRAIN) * GRAIN
        start = self._origin + distance + residue % ROUND
        end = start + max(nbytes, 1)
        if end + GAP > self._stop:
            room = (self._stop - self._origin) >> 30
            raise RefusedError(
                Reason("phantom-exhausted", f"one call addresses more than {room} GiB; compile smaller blocks")
            )
        self.end = end
        self.starts.append(start)
        return start

    def mark(self) -> tuple[int, int]:
        """How much was handed out; ``rewind`` returns there."""
        return len(self.starts), self.end

    def rewind(self, mark: tuple[int, int]) -> None:
        """Hand out the same addresses again."""
        count, self.end = mark
        del self.starts[count:]
