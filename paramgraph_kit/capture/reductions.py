"""Which bytes of a reduction's parameters nobody reads: one struct by value, ATen's ReduceOp.

From its end, whose fields are known whatever is reduced with: source, two destinations, three buffers, where the
numbering begins, two flags and a count are 64 bytes. In front of them lie a configuration and two calculators of
offsets, for one tensor and for two. (Layouts: torch 2.11 to 2.13, ATen/native/cuda/Reduce.cuh.)
"""

from __future__ import annotations

import re
import struct

from paramgraph_kit.capture.calculators import SIZES, STRIDES, is_calculator, unused_of_calculator

_INPUT, _OUTPUT = SIZES + STRIDES, SIZES + 2 * STRIDES
_CONFIGURATION, _TAIL = 64, 64
_VECTOR_SIZES = [struct.pack("<i", n) for n in (1, 2, 4, 8, 16)]
# What ATen reduces with that has no members (native/SharedReduceOps.h, closures that capture nothing).
_PAIR = re.compile(r"Arg(?:Max|Min)OpsI([dlfisahb])E")
_WELFORD = re.compile(r"WelfordOpsI(?:[fd]|S\d*_|N3c10\w+?E)([fd])i")
_BYTES = {"d": 8, "l": 8, "f": 4, "i": 4, "s": 2, "a": 1, "h": 1, "b": 1}
_LIMITS = re.compile(r"ReduceOpI(?:([dlfisahb])|N3c10(?:4Half|8BFloat16)E)NS0_9MinMaxOpsI")
# Sums and products of numbers of eight bytes: what lies before the configuration is one byte, a gap, and the number.
_WIDE = re.compile(r"ReduceOpI(?:([ld])NS0_14func_wrapper_tI\1|N3c107complexIfEENS0_14func_wrapper_tIS\d*_)Z")
_BEFORE_WIDE = 16
_EMPTY = ("NormTwoOps", "NormOneOps", "NormZeroOps", "AbsMaxOps", "AbsMinOps", "MaxOps", "MinOps", "func_wrapper_t")


def unused_of_reduction(name: str, data: bytes) -> set[int] | None:
    """Offsets in the struct; None where its bytes are not those of the layout that is known."""
    places = [
        (at, end)
        for end in (len(data) - _TAIL, len(data) - _TAIL - 8)  # where the source's address lies; some are filled up
        for at in (end - _INPUT - _OUTPUT, end - _INPUT - _OUTPUT - 4)
        if _fits(data, at) and (at - _CONFIGURATION == _BEFORE_WIDE or not _WIDE.search(name))
    ]
    if not places:
        return None
    # A calculator without dimensions is four bytes of zero, as others are; one with any is sure.
    sure = [sum(is_calculator(data, n) for n in (at, at + _INPUT)) for at, _ in places]
    likely = [place for place, calculators in zip(places, sure, strict=True) if calculators == max(sure)]
    return set.intersection(*(_unused(name, data, at, end) for at, end in likely))


def _fits(data: bytes, at: int) -> bool:
    """Whether the input's calculator may lie at ``at``, behind a configuration."""
    if at < _CONFIGURATION + 4 or data[at - 8] > 1 or data[at - 4 : at] not in _VECTOR_SIZES:
        return False
    return all(data[n : n + 4] == bytes(4) or is_calculator(data, n) for n in (at, at + _INPUT))


def _unused(name: str, data: bytes, at: int, end: int) -> set[int]:
    found = {*range(at - 7, at - 4), *range(at + _INPUT + _OUTPUT, end)}  # behind a bool; up to the source's address
    for start, tensors in ((at, 1), (at + _INPUT, 2)):
        found |= unused_of_calculator(data, start, tensors) or set()
    if data[end + _TAIL - 4 : end + _TAIL] == struct.pack("<i", 1):
        found.update(range(end + 16, end + 24))  # one output has no second destination
    found |= {end + _TAIL - 6, end + _TAIL - 5, *range(end + _TAIL, len(data))}  # behind two flags; at the end
    # One byte for the operation, then the first number, aligned to its size; the configuration is behind that.
    numbers = at - _CONFIGURATION
    if any(f"{len(each)}{each}I" in name for each in _EMPTY):
        found.update(range({8: 4, 16: 8, 32: 16}.get(numbers, 1)))
    if (pair := _PAIR.search(name)) is not None and numbers == 24:  # a number and its index, of eight bytes
        found.update([*range(8), *range(8 + _BYTES[pair[1]], 16)])
    if (limits := _LIMITS.search(name)) is not None:  # the operation, and two numbers
        size = _BYTES[limits[1]] if limits[1] else 2
        if numbers == -(-3 * size // 4) * 4:
            found.update([*range(size), *range(3 * size, numbers)])
    if (welford := _WELFORD.search(name)) is not None and numbers == {"f": 24, "d": 48}[welford[1]]:
        found.update(range(_BYTES[welford[1]] + 1, 2 * _BYTES[welford[1]]))  # behind a correction and a bool
    return found
