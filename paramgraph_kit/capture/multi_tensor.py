"""Which bytes of a foreach or fused optimizer kernel's parameters it reads: lists of tensors with room for many.

The struct that these kernels take by value has room for hundreds of tensors and thousands of blocks (4 KB, or 32 KB
where the driver allows it) and is filled as far as needed. What is behind that is left over from the launch before, or
from the stack. (Layouts: torch 2.11 to 2.13, ATen/native/cuda/MultiTensorApply.cuh.)
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from paramgraph_kit.driver.api import RawNode

KERNEL = "multi_tensor_apply_kernel"
_KIND = re.compile(r"(FusedOptimizerTensorListMetadata|TensorListScalarListMetadata|TensorListMetadata)I(.*)")
_DEPTH = re.compile(r"Li(\d)E(?:Lb([01])E)?")
_ARGUMENTS = re.compile(r"EEEJ(.)")  # of the functor, the kernel's last parameters
_TENSORS = (110, 64, 48, 36, 30)  # by the number of lists; seven times as many in the large struct
_TENSORS_WITH_SCALARS = (96, 64, 48, 36, 30)
_TENSORS_WITH_COMPLEX = (72, 60)  # complex numbers of double precision
_BLOCKS = 320


@dataclass(frozen=True, slots=True)
class _Layout:
    """Fields one after the other: (bytes of an entry, entries, whether they are counted in tensors or in blocks)."""

    fields: tuple[tuple[int, int, bool], ...]
    index: int  # which field says of each block whose it is
    tail: int  # bytes of what follows

    @property
    def size(self) -> int:
        """Bytes of the struct."""
        end = 0
        for entry, count, _ in self.fields:
            end = _aligned(end, entry) + entry * count
        return _aligned(end + self.tail, 8)


def unused_entries(node: RawNode) -> set[int]:
    """Offsets of the bytes of ``node.parameters`` behind the entries that the kernel reads; empty if nobody is sure."""
    if not node.layout:
        return set()
    start, size = node.layout[0]
    layout = next((found for found in _layouts(node.name) if found.size == size), None)
    if layout is None:
        return set()
    data = node.parameters[start : start + size]
    places, end = [], 0
    for entry, count, _ in layout.fields:
        end = _aligned(end, entry)
        places.append(end)
        end += entry * count
    blocks = node.grid[0]
    width, room, _ = layout.fields[layout.index]
    if not 0 < blocks <= room or node.grid[1:] != (1, 1):
        return set()
    tensors = 1 + max(struct.unpack_from(f"<{blocks}{'H' if width == 2 else 'B'}", data, places[layout.index]))
    found = _empty_functors(node)
    found |= set(range(start + end + layout.tail, start + size))  # what fills it up
    for at, (entry, count, by_tensor) in zip(places, layout.fields, strict=True):
        used = tensors if by_tensor else blocks
        if used > count:
            return set()
        found.update(range(start + at + used * entry, start + at + count * entry))
    return found


def _empty_functors(node: RawNode) -> set[int]:
    """The kernel's functor, and the operation that it is given, are of one byte where they have no members."""
    given = _ARGUMENTS.search(node.name)
    of_class = given is not None and given[1] in "SNZ"  # numbers, bools and pointers have small letters
    return {at for at, size in node.layout[: 3 if of_class else 2] if size == 1}  # the lists have more


def _layouts(name: str) -> list[_Layout]:
    """What the struct may be, by the kernel's mangled name; its size tells which it is."""
    kind = _KIND.search(name)
    depth = _DEPTH.search(kind[2]) if kind else None
    if kind is None or depth is None or not 1 <= int(depth[1]) <= len(_TENSORS):
        return []
    lists, large = int(depth[1]), depth[2] == "1"
    factor, index = (7, 2) if large else (1, 1)
    blocks = _BLOCKS * factor

    def made(tensors: int, extra: tuple[tuple[int, int, bool], ...], tail: int) -> _Layout:
        addresses = tuple((8, tensors, True) for _ in range(lists))
        fields = (*addresses, (8, tensors, True), *extra)
        return _Layout((*fields, (index, blocks, False), (4, blocks, False)), len(fields), tail)

    plain, scalars = _TENSORS[lists - 1] * factor, _TENSORS_WITH_SCALARS[lists - 1] * factor
    if kind[1] == "TensorListMetadata":
        return [made(plain, (), 4)]
    if kind[1] == "FusedOptimizerTensorListMetadata":
        return [made(plain, ((8, scalars, True),), 4)]
    if "complexId" in kind[2][: depth.start()] and lists <= len(_TENSORS_WITH_COMPLEX):
        tensors = _TENSORS_WITH_COMPLEX[lists - 1] * factor
        return [made(tensors, ((16, tensors, True),), 0)]
    return [made(scalars, ((n, scalars, True),), 0) for n in (1, 2, 4, 8, 16)]


def _aligned(at: int, to: int) -> int:
    return -(-at // to) * to
