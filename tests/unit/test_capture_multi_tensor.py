"""What foreach and fused optimizer kernels read of their lists of tensors, on byte buffers as C++ lays them out."""

from __future__ import annotations

import struct
from functools import partial

import pytest

from paramgraph_kit.capture.unused import unused_bytes
from paramgraph_kit.capture.words import Side, classify
from paramgraph_kit.driver.api import RawAllocation, RawNode
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind, Reason, WordKind

PREFIX = "_ZN2at6native57_GLOBAL__N__25multi_tensor_apply_kernelINS1_"
# Kernel name; sizeof in C++; lists and their room; bytes of a tensor's other entries; bytes of a block's index.
KERNELS = {
    "adam, 32 KB": (
        "32FusedOptimizerTensorListMetadataILi4ELb1EEENS1_20FusedAdamMathFunctorI",
        25544,
        4,
        252,
        (8, 8),
        2,
    ),
    "amsgrad, 4 KB": (
        "32FusedOptimizerTensorListMetadataILi5ELb0EEENS1_20FusedAdamMathFunctorI",
        3288,
        5,
        30,
        (8, 8),
        1,
    ),
    "two lists, 32 KB": ("18TensorListMetadataILi2ELb1EEENS1_14UnaryOpFunctorIf", 24200, 2, 448, (8,), 2),
    "one list, 4 KB": ("18TensorListMetadataILi1ELb0EEENS1_14UnaryOpFunctorIf", 3368, 1, 110, (8,), 1),
    "float scalars, 32 KB": ("28TensorListScalarListMetadataIfLi1ELb1EEENS1_", 26880, 1, 672, (8, 4), 2),
    "complex scalars, 4 KB": (
        "28TensorListScalarListMetadataIN3c107complexIdEELi2ELb0EEENS1_",
        4000,
        2,
        60,
        (8, 16),
        1,
    ),
    "double scalars, 4 KB": ("28TensorListScalarListMetadataIdLi2ELb0EEENS1_", 3648, 2, 64, (8, 8), 1),
}


def packed(kernel: str, base: int, blocks: list[int], garbage: int) -> RawNode:
    """A launch over ``max(blocks) + 1`` tensors, with ``garbage`` wherever nothing is filled in."""
    name, size, lists, room, extra, width = KERNELS[kernel]
    data = bytearray(struct.pack("<Q", garbage) * (size // 8))
    tensors = max(blocks) + 1
    at = 0
    for n in range(lists):
        for t in range(tensors):
            struct.pack_into("<Q", data, at + 8 * t, base + 4096 * (n * tensors + t))
        at += 8 * room
    for entry in extra:
        data[at : at + entry * tensors] = bytes([1]) * (entry * tensors)
        at += entry * room
    struct.pack_into(f"<{len(blocks)}{'H' if width == 2 else 'B'}", data, at, *blocks)
    at += width * (2240 if width == 2 else 320)
    struct.pack_into(f"<{len(blocks)}i", data, at, *range(len(blocks)))
    at += 4 * (2240 if width == 2 else 320)
    if "ScalarList" not in name:
        struct.pack_into("<i", data, at, 0)
    return RawNode(NodeKind.KERNEL, PREFIX + name, bytes(data), (), (len(blocks), 1, 1), layout=((0, size),))


def within(base: int, value: int) -> bool:
    return base <= value < base + (1 << 32)


def sides(kernel: str, blocks: list[int], garbage: tuple[int, int]) -> list[Side]:
    bases = 0x1A80_0000_0000, 0x2B80_0000_0000
    tensors = KERNELS[kernel][2] * (max(blocks) + 1)
    return [
        Side(
            [packed(kernel, base, blocks, left)],
            [RawAllocation(base + 4096 * n, 2048, 0) for n in range(tensors)],
            partial(within, base),
        )
        for base, left in zip(bases, garbage, strict=True)
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_what_is_filled_in_counts(kernel: str) -> None:
    # GIVEN two captures of a launch over three tensors, with other garbage behind them in each
    first, second = sides(kernel, [0, 0, 1, 2, 2], (0x7F00_1234_5678_0001, 0x1B))

    # WHEN
    words = classify(first, second)[0]

    # THEN every address that was filled in is found, and nothing else is one
    found = [word for word in words if word.kind is WordKind.POINTER]
    assert [word.allocation for word in found] == list(range(3 * KERNELS[kernel][2]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_difference_in_what_is_read_is_refused(kernel: str) -> None:
    # GIVEN another number of elements in the second capture
    first, second = sides(kernel, [0, 1], (0, 0))
    _, _, lists, room, _, _ = KERNELS[kernel]
    data = bytearray(second.nodes[0].parameters)
    data[8 * lists * room + 8] ^= 1
    second.nodes[0].parameters = bytes(data)

    # WHEN / THEN
    with pytest.raises(RefusedError, match="differ between two captures"):
        classify(first, second)


def test_stale_addresses_behind_the_lists_are_no_addresses() -> None:
    # GIVEN what an earlier launch has left there: real memory that nobody owns any more
    first, second = sides("adam, 32 KB", [0], (0xDEAD000, 0xDEAD000))

    def nobody(value: int) -> str | None:
        if value == 0xDEAD000:
            raise RefusedError(Reason("unowned-address", "freed"))
        return None

    # WHEN / THEN
    assert sum(word.kind is WordKind.POINTER for word in classify(first, second, nobody)[0]) == 4


def test_functors_without_members_are_no_numbers_but_flags_are() -> None:
    # GIVEN a kernel's functor, an operation and a flag, of one byte each, with another byte in each capture
    size = KERNELS["one list, 4 KB"][1]
    plain = "18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt4plusIfEfEEE"
    flags = "18TensorListMetadataILi1EEENS1_19FusedSgdMathFunctorIfLi1EEEJbbEEE"
    layout = ((0, size), (size, 1), (size + 1, 1), (size + 2, 1))
    found = {}
    for name in (plain, flags):
        data = packed("one list, 4 KB", 1 << 44, [0], 0).parameters + bytes([1, 0, 1]) + bytes(5)
        node = RawNode(NodeKind.KERNEL, PREFIX + name, data, (), (1, 1, 1), layout=layout)
        unused = unused_bytes(node, lambda _: False)
        found[name] = [at in unused for at, _ in layout[1:]]

    # THEN of the first kernel both functors mean nothing, of the second only its own
    assert found == {plain: [True, True, False], flags: [True, False, False]}


def test_the_addresses_of_results_count_as_far_as_there_are_blocks() -> None:
    # GIVEN what ends a norm of three tensors: a list with room for 32 addresses
    data = struct.pack("<32Q", *range(1, 33))
    name = "_ZN2at6native14lpnorm_cleanupIfLNS0_8NormTypeE1EfLb1EfEEvPKT3_NS0_19TensorListAddressesEi"
    node = RawNode(NodeKind.KERNEL, name, data, (), (3, 1, 1), layout=((0, 8), (8, 240), (248, 4)))

    # WHEN / THEN
    assert unused_bytes(node, lambda _: False) == {*range(8 + 24, 248), *range(252, 256)}


def test_a_flag_with_an_old_address_around_it_is_no_address() -> None:
    # GIVEN a flag, and in the seven bytes behind it what is left of an address that nobody owns any more
    stale = 0x7F00_DEAD_0000

    def nobody(value: int) -> str | None:
        if value == stale:
            raise RefusedError(Reason("unowned-address", "freed"))
        return None

    first, second = sides("one list, 4 KB", [0], (0, 0))
    for side in (first, second):
        node = side.nodes[0]
        node.parameters += struct.pack("<Q", stale)
        node.layout = ((0, 3368), (3368, 1))
        node.name = node.name.replace("UnaryOpFunctorIf", "UnaryOpFunctorIfLi1EEEJbEEE")

    # WHEN / THEN it counts with its own byte alone
    assert sum(word.kind is WordKind.POINTER for word in classify(first, second, nobody)[0]) == 1


def test_a_struct_of_unknown_size_is_read_whole() -> None:
    # GIVEN a struct that is larger than any that is known
    node = packed("one list, 4 KB", 0, [0], 7)
    node.parameters += bytes(8)
    node.layout = ((0, 3376),)

    # WHEN / THEN
    assert unused_bytes(node, lambda _: False) == set()
