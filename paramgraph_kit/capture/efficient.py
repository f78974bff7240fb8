"""Which bytes of memory-efficient attention's parameters nobody reads: the gaps of two structs by value.

Where a field of fewer bytes stands before one of eight, what is between them is whatever lay on the stack. A struct is
taken for the known one by its size, by the grid that is made of its numbers, and by its flags. (Layouts: torch 2.11 to
2.13, ATen/native/transformers/cuda/mem_eff_attention: kernel_forward.h, kernel_backward.h.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from paramgraph_kit.driver.api import RawNode

_NAMESPACE = "PyTorchMemEffAttention"


@dataclass(frozen=True)
class _Struct:
    name: str  # in the kernel's
    size: int
    grid: tuple[tuple[int, str], ...]  # the grid's last numbers: where they stand, and as what
    flags: tuple[tuple[int, int], ...]  # of one byte: where, and the largest value
    gaps: tuple[range, ...]


_STRUCTS = (
    _Struct(
        "fmha_cutlassF",
        272,
        grid=((196, "i"), (192, "i")),  # heads, batches
        flags=((116, 2), (200, 1), (248, 1)),  # the mask's kind, dropout, whether the random state is a capture's
        gaps=(range(60, 64), range(117, 120), range(201, 208), range(220, 224), range(249, 256)),
    ),
    _Struct(
        "fmha_cutlassB",
        464,
        grid=((380, "h"), (160, "i"), (376, "i")),  # splits of the keys, heads, batches
        flags=((164, 2), (216, 3), (248, 1)),
        gaps=(
            *(range(165, 168), range(217, 224), range(249, 256)),
            *(range(268, 272), range(292, 296), range(382, 384)),
        ),
    ),
)


def unused_of_efficient_attention(node: RawNode) -> set[int]:
    """Offsets of the bytes; empty for another kernel, or where the struct is not one that is known."""
    if _NAMESPACE not in node.name:
        return set()
    start, size = node.layout[0]
    data = node.parameters[start : start + size]
    known = next((each for each in _STRUCTS if each.name in node.name and each.size == size), None)
    if known is None or any(data[at] > most for at, most in known.flags):
        return set()
    made = tuple(struct.unpack_from(f"<{kind}", data, at)[0] for at, kind in known.grid)
    if made != tuple(node.grid)[-len(made) :]:
        return set()
    return {start + at for gap in known.gaps for at in gap}
