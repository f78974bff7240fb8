"""ATen's OffsetCalculator among bytes: known by dividers whose magic numbers are right.

It has room for 25 dimensions, first their sizes as dividers, then the strides of each tensor. (Layouts: torch 2.11 to
2.13, ATen/cuda/detail: OffsetCalculator.cuh, IntegerDivider.cuh.)
"""

from __future__ import annotations

import struct

DIMENSIONS = 25
SIZES = 4 + 12 * DIMENSIONS  # bytes: int dims, IntDivider sizes_[25]
STRIDES = 4 * DIMENSIONS  # for each of its tensors


def is_calculator(data: bytes, at: int) -> bool:
    """Whether one begins there: it has dimensions, and the magic numbers of each are right."""
    (dims,) = struct.unpack_from("<i", data, at)
    return 1 <= dims <= DIMENSIONS and all(
        _divides(*struct.unpack_from("<III", data, at + 4 + 12 * d)) for d in range(dims)
    )


def unused_of_calculator(data: bytes, at: int, tensors: int) -> set[int] | None:
    """Offsets of what is behind its dimensions, in dividers and strides; None if none can begin there.

    One of a tensor without dimensions is a zero, as much else is: ask only where one must be.
    """
    (dims,) = struct.unpack_from("<i", data, at)
    if dims and not is_calculator(data, at):
        return None
    strides = at + SIZES
    return {*range(at + 4 + 12 * dims, strides), *range(strides + 4 * tensors * dims, strides + tensors * STRIDES)}


def _divides(divisor: int, magic: int, shift: int) -> bool:
    """Whether these are the numbers with which ATen's IntDivider divides by ``divisor``.

    >>> _divides(24, 1431655766, 5), _divides(24, 1431655765, 5)
    (True, False)
    """
    if not 1 <= divisor < 1 << 31 or shift != (divisor - 1).bit_length():
        return False
    return magic == ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1
