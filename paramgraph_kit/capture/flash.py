"""Which bytes of flash attention's parameters nobody reads: the gaps of one struct by value.

The struct is cleared by assigning an empty one, field by field: what lies between fields is whatever lay on the stack.
It is taken for what it is by its size and by numbers in it that are made of one another. (Layouts: torch 2.11 to 2.14,
third_party/flash-attention, csrc/flash_attn/src/flash.h, its release 2.7.)
"""

from __future__ import annotations

import math
import struct

from paramgraph_kit.driver.api import RawNode

_NAMESPACE = "_ZN13pytorch_flash"
_FORWARD, _BACKWARD = 472, 648  # bytes; the backward's begins with all of the forward's
_HEADS, _SCALES, _DROPOUT, _BFLOAT = 96, (216, 212), 372, 440
_FLAGS, _DETERMINISTIC = (424, 440, 441, 442, 443, 464, 465), 632  # of one byte; the last one is the backward's
# Behind three numbers of heads, a probability of one byte, a random state's flag, and the two flags at the end.
_GAPS = (*range(108, 112), *range(377, 380), *range(425, 432), *range(466, 472))


def unused_of_flash_attention(node: RawNode) -> set[int]:
    """Offsets of the bytes; empty for another kernel, or where the struct is not the one that is known."""
    if not node.name.startswith(_NAMESPACE):
        return set()
    start, size = node.layout[0]
    data = node.parameters[start : start + size]
    if size not in (_FORWARD, _BACKWARD) or (scale := _scale(node.name, data)) is None:
        return set()
    found = set(_GAPS)
    if scale == min(_SCALES):  # nine sizes in front of it, and not ten
        found.update(range(scale + 8, max(_SCALES) + 8))
    if size == _BACKWARD:
        found.update(range(_DETERMINISTIC + 1, _DETERMINISTIC + 8))
    return {start + at for at in found}


def _scale(name: str, data: bytes) -> int | None:
    """Where the scale lies, if all that follows from other fields lies where the known struct has it."""
    heads, of_keys, each = struct.unpack_from("<3i", data, _HEADS)
    kept, in_a_byte, inverse, scaled = struct.unpack_from("<fB3xff", data, _DROPOUT)
    flags = _FLAGS if len(data) == _FORWARD else (*_FLAGS, _DETERMINISTIC)
    if (
        of_keys < 1
        or heads != of_keys * each
        or not 0 < kept <= 1
        or in_a_byte != math.floor(kept * 255)
        or not math.isclose(inverse * kept, 1, rel_tol=1e-6)
        or any(data[at] > 1 for at in flags)
        or data[_BFLOAT] != ("bfloat16_t" in name)
    ):
        return None
    for at in _SCALES:
        (scale,) = struct.unpack_from("<f", data, at)
        if scale and math.isclose(scaled, inverse * scale, rel_tol=1e-6):
            return at
    return None
