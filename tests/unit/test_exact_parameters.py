"""Exactly which bytes of a kernel's parameters mean nothing, to the byte and on both sides of each limit."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from paramgraph_kit.capture.indexing import unused_of_indexing
from paramgraph_kit.capture.multi_tensor import unused_entries
from paramgraph_kit.capture.unused import _offset_calculators, unused_bytes
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.kernel_names import ATEN
from paramgraph_kit.trace.model import NodeKind
from tests.unit.test_capture_multi_tensor import packed
from tests.unit.test_capture_unused import PHANTOM, calculator, is_pointer, node

ADDRESSES = struct.pack("<20Q", *[PHANTOM + 0x1111 * (n + 1) for n in range(20)])


def test_of_a_list_of_addresses_those_behind_the_last_block_s_are_unused() -> None:
    # GIVEN a number, and two lists with room for five addresses, in a grid of two blocks
    kernel = node(f"{ATEN}14lpnorm_cleanupI19TensorListAddresses", bytes(4), bytes(40), bytes(40), grid=(2, 3, 1))
    # WHEN asked THEN two addresses of each are read, and the number
    assert unused_bytes(kernel, is_pointer) == {*range(4, 8), *range(24, 48), *range(64, 88)}


def test_beside_lists_of_tensors_what_fills_up_parameters_is_unused_too() -> None:
    # GIVEN lists of tensors, and a number aligned to more than where they end
    lists = packed("one list, 4 KB", PHANTOM, [0], 0)
    parts = [lists.parameters[start : start + size] for start, size in lists.layout]
    kernel = node(ATEN + lists.name, *parts, b"\x01", bytes(4), grid=lists.grid)
    own = unused_bytes(node(ATEN + lists.name, *parts, grid=lists.grid), is_pointer)
    first, second = kernel.layout[-2:]
    # WHEN asked THEN both are: the gap behind the functor, and what is not filled of the lists
    assert own
    assert unused_bytes(kernel, is_pointer) == own | set(range(first[0], second[0]))


@pytest.mark.parametrize(("byte", "empty"), [(0, False), (1, False), (2, True), (255, True)])
def test_a_function_of_one_byte_is_no_bool_where_it_is_more_than_one(byte: int, empty: bool) -> None:
    # GIVEN a parameter of one byte WHEN asked THEN it may be a bool up to one
    assert unused_bytes(node(f"{ATEN}6kernelEZE", bytes([byte])), is_pointer) == ({0} if empty else set())


@pytest.mark.parametrize("tensors", [1, 2, 3, 7, 8])
def test_a_calculator_ends_at_the_first_address_behind_it(tensors: int) -> None:
    # GIVEN one for up to eight tensors with many addresses behind WHEN looked for THEN the first one shows its end
    data = bytes(8) + calculator((5,), tensors)
    data += bytes(-len(data) % 8) + ADDRESSES
    assert _offset_calculators(data, is_pointer) == [(12, 312 + 100 * tensors)]


def test_a_calculator_for_more_than_eight_tensors_is_known_for_one() -> None:
    # GIVEN nine WHEN looked for THEN nobody says how many there are, and the first's strides are sure
    data = bytes(4) + calculator((5,), 9)
    data += bytes(-len(data) % 8) + ADDRESSES
    assert _offset_calculators(data, is_pointer) == [(8, 408)]


@pytest.mark.parametrize(("missing", "tensors"), [(0, 2), (1, 1), (2, 1), (8, 1)])
def test_a_part_of_an_address_shows_no_end(missing: int, tensors: int) -> None:
    # GIVEN a calculator for two tensors, and an address behind it of which some bytes are not there
    data = bytes(4) + calculator((5,), 2) + bytes(4) + struct.pack("<Q", PHANTOM)
    # WHEN looked for THEN only a whole one counts
    assert _offset_calculators(data[: len(data) - missing], is_pointer) == [(8, 308 + 100 * tensors)]


def test_a_calculator_ends_where_another_one_begins() -> None:
    # GIVEN one for two tensors and another one, whole or without its strides WHEN looked for THEN the first one's end
    # is known by the other one's sizes
    both = calculator((5,), 2) + calculator((8,), 1)
    assert _offset_calculators(both, is_pointer) == [(4, 504), (508, 908)]
    assert _offset_calculators(both[:808], is_pointer) == [(4, 504)]
    assert _offset_calculators(both[:800], is_pointer) == [(4, 404)]
    # AND bytes behind it that are none show nothing
    assert _offset_calculators(calculator((5,), 2) + bytes(404), is_pointer) == [(4, 404)]


@pytest.mark.parametrize(
    ("before", "gap"),
    [
        (0, True),
        (4, False),  # the addresses follow at once
        (64, True),  # that ends at a multiple of nine
    ],
)
def test_exactly_the_gap_between_a_calculator_and_an_address_is_named(before: int, gap: bool) -> None:
    # GIVEN a closure over one tensor, numbers before its calculator, and addresses behind
    data = bytes(before) + calculator((5,), 1)
    end = len(data)
    data += bytes(4 if gap else 0) + ADDRESSES
    # WHEN asked THEN four bytes up to the first address are named, where it begins behind them
    found = unused_bytes(node(f"{ATEN}15gpu_kernel_impl", data), lambda value: value >= PHANTOM)
    assert found == set(range(before + 4, end + 4 * gap))


def garbage_of(data: bytes) -> set[int]:
    """Where a test has put what stands for nothing."""
    return {at for at, byte in enumerate(data) if byte == 0xA5}


@pytest.mark.parametrize("sizes", [(), (5,), (24, 7), (1,) * 25])
@pytest.mark.parametrize(
    ("name", "tensors", "size"),
    [
        ("gpu_index_kernelIZNS0_17index_kernel_implI", 3, 1240),
        ("gpu_index_kernelIZNS0_21other_kernel_implI", 3, 1240),
        ("index_copy_kernel_impl", 3, 648),
        ("_cuda_scatter_gather_internal_kernel", 3, 664),
    ],
)
def test_of_what_computes_places_exactly_the_gaps_are_named(
    name: str, tensors: int, size: int, sizes: tuple[int, ...]
) -> None:
    # GIVEN a closure: a calculator, the gap up to the addresses, and whatever else, at last a function without members
    data = calculator(sizes, tensors)
    data += b"\xa5" * (-len(data) % 8)
    data += b"\x11" * (size - len(data))
    if "index_kernel_impl" in name:
        data = data[:-8] + b"\xa5" * 8
    kernel = node(name, struct.pack("<i", 9), data)
    # WHEN asked THEN exactly those bytes are named, and none in a closure of another size or among more parameters
    assert unused_of_indexing(kernel) == {8 + at for at in garbage_of(data)}
    for other in ((bytes(8), data + bytes(8)), (bytes(8), data[:-8]), (bytes(8), data, bytes(8)), (data,)):
        assert unused_of_indexing(node(name, *other)) == set()
    assert unused_of_indexing(node("another", bytes(8), data)) == set()


@pytest.mark.parametrize("flag", [0, 1, 2])
@pytest.mark.parametrize(("sizes", "other"), [((), ()), ((5,), (3, 2)), ((1,) * 25, (1,) * 25)])
def test_of_taking_exactly_the_gaps_are_named(flag: int, sizes: tuple[int, ...], other: tuple[int, ...]) -> None:
    # GIVEN a calculator for two, addresses and a count, a flag, a gap, a calculator for one, an address
    data = calculator(sizes, 2) + struct.pack("<3Q", PHANTOM, PHANTOM, 9) + bytes([flag]) + b"\xa5" * 3
    data += calculator(other, 1) + struct.pack("<Q", PHANTOM)
    assert len(data) == 944
    # WHEN asked THEN exactly those bytes are named, and none where the flag is none
    found = unused_of_indexing(node("20cuda_take_put_kernel", struct.pack("<q", 9), data))
    assert found == ({8 + at for at in garbage_of(data)} if flag < 2 else set())


def spectrum(first: int, second: int, tail: int = 8) -> list[bytes]:
    """(count, two addresses, dimensions with sizes and strides, the same with a mask)."""
    parts = [struct.pack("<q", 9), *[struct.pack("<Q", PHANTOM)] * 2]
    for dims in (first, second):
        lists = struct.pack(f"<{dims}q", *range(1, dims + 1)).ljust(200, b"\xa5") if 0 < dims <= 25 else b"\xa5" * 200
        parts.append(struct.pack("<i", dims) + b"\xa5" * 4 + lists * 2)
    parts[-1] += struct.pack("<I", 1) + b"\xa5" * (tail - 4)
    return parts


@pytest.mark.parametrize(
    ("first", "second", "tail", "known"),
    [(0, 0, 8, True), (1, 25, 8, True), (25, 2, 8, True), (26, 2, 8, False), (2, -1, 8, False), (2, 2, 16, False)],
)
def test_of_half_a_spectrum_exactly_what_is_not_filled_is_named(
    first: int, second: int, tail: int, known: bool
) -> None:
    # GIVEN dimensions, of which there may be 25 WHEN asked THEN what is behind them is named, and the masks' gap
    kernel = node("_fft_conjugate_copy_kernel", *spectrum(first, second, tail))
    assert unused_of_indexing(kernel) == (garbage_of(kernel.parameters) if known else set())


HISTOGRAM = "_ZN2at4cuda17kernelHistogram1DIiil23CUDAHistogramMemoryTypeE1E"


def described(dims: int, more: int = 0) -> bytes:
    """An address, sizes and strides of eight bytes for 25 dimensions, and how many there are."""
    lists = struct.pack(f"<{dims}q", *range(1, dims + 1)).ljust(200, b"\xa5") if 0 < dims <= 25 else b"\xa5" * 200
    return struct.pack("<Q", PHANTOM) + lists * 2 + struct.pack("<i", dims) + b"\xa5" * 4 + bytes(more)


@pytest.mark.parametrize("weights", [b"\xa5", described(1), described(25)])
@pytest.mark.parametrize("dims", [(0, 1, 2), (25, 0, 25), (1, 26, 1), (-1, 1, 1)])
def test_of_a_histogram_exactly_what_is_not_filled_is_named(dims: tuple[int, int, int], weights: bytes) -> None:
    # GIVEN three tensors, four numbers, and weights or a function without members
    tensors = [described(each) for each in dims]
    numbers = [struct.pack("<q", 8), struct.pack("<i", 7) + b"\x01\x01\x01\x01", bytes(8), bytes(8)]
    kernel = node(HISTOGRAM, *tensors, *numbers, weights)
    # WHEN asked THEN what is behind the dimensions is named
    known = all(0 <= each <= 25 for each in dims)
    assert unused_of_indexing(kernel) == (garbage_of(kernel.parameters) if known else set())
    # AND nothing where a number has more than eight bytes, there are fewer or more, or a tensor's struct is another
    for parts in (
        [*tensors, bytes(16), *numbers[1:], weights],
        [*tensors, *numbers[:3], bytes(16), weights],
        [*tensors, *numbers[:3], weights],
        [*tensors, *numbers, bytes(8), weights],
        [described(1, 8), *tensors[1:], *numbers, weights],
        [*tensors[:2], described(1, 8), *numbers, weights],
        [*tensors, *numbers, b"\xa5" * 2],
    ):
        assert unused_of_indexing(node(HISTOGRAM, *parts)) == set()


NUMBERS = {"b": ctypes.c_uint8, "s": ctypes.c_int16, "f": ctypes.c_float, "d": ctypes.c_double}
ROOM = {"TensorListMetadata": (110, 64, 48, 36, 30), "FusedOptimizerTensorListMetadata": (110, 64, 48, 36, 30)}
ROOM["TensorListScalarListMetadata"] = (96, 64, 48, 36, 30)


class Complex(ctypes.Structure):
    """Two numbers of double precision."""

    _fields_ = (("real", ctypes.c_double), ("imaginary", ctypes.c_double))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("kind", "number"), [*[(k, "") for k in list(ROOM)[:2]], *[(list(ROOM)[2], n) for n in "bsfdc"]]
)
def test_structs_of_lists_are_laid_out_as_c_lays_them_out(kind: str, number: str, depth: int, large: bool) -> None:
    # GIVEN the struct as a C compiler has it, of three tensors in five blocks, and garbage wherever nothing is filled
    room, factor = ROOM[kind][depth - 1], 7 if large else 1
    if number == "c" and depth <= 2:
        room = (72, 60)[depth - 1]
    room, blocks = room * factor, 320 * factor
    held: Any = Complex if number == "c" else NUMBERS.get(number)
    parts: list[tuple[str, Any]] = [(f"addresses{n}", ctypes.c_uint64 * room) for n in range(depth)]
    parts.append(("numel", ctypes.c_int64 * room))
    if "Fused" in kind:
        parts.append(("steps", ctypes.c_uint64 * ((96, 64, 48, 36, 30)[depth - 1] * factor)))
    if number:
        parts.append(("scalars", held * room))
    parts += [("tensor", (ctypes.c_uint16 if large else ctypes.c_uint8) * blocks), ("chunk", ctypes.c_int32 * blocks)]
    if not number:
        parts.append(("start", ctypes.c_int32))
    layout: Any = type("Layout", (ctypes.Structure,), {"_fields_": parts})
    data, end = bytearray(ctypes.sizeof(layout)), 0
    for name, each in parts:
        at, count = getattr(layout, name).offset, getattr(each, "_length_", 1)
        end = at + ctypes.sizeof(each)
        data[at:end] = b"\xa5" * ctypes.sizeof(each)
        filled = 5 if name in ("tensor", "chunk") else 3
        width = ctypes.sizeof(each) // count
        data[at : at + width * min(filled, count)] = bytes(width * min(filled, count))
        if name == "tensor":
            data[at : at + 5 * width] = struct.pack("<5H" if large else "<5B", 0, 0, 1, 2, 2)
    data[end:] = b"\xa5" * (len(data) - end)
    spelled = {"c": "N3c107complexIdEE", "b": "h"}.get(number, number)
    name = f"_ZN2at6native25multi_tensor_apply_kernelINS1_28{kind}I{spelled}Li{depth}ELb{int(large)}EEENS1_"
    # WHEN asked THEN exactly that is named, wherever the struct begins
    for start in (0, 8):
        kernel = RawNode(NodeKind.KERNEL, name, bytes(start) + data, (), (5, 1, 1), layout=((start, len(data)),))
        assert unused_entries(kernel) == {start + at for at in garbage_of(bytes(data))}


@pytest.mark.parametrize("of", ["TensorListMetadataILi0E", "TensorListMetadataILi6E", "TensorListMetadataIfE", "Other"])
def test_of_other_lists_of_tensors_nothing_is_known(of: str) -> None:
    # GIVEN a kernel whose name says no number of lists up to five WHEN asked THEN nothing is
    name = f"_ZN2at6native25multi_tensor_apply_kernelINS1_18{of}EENS1_"
    assert unused_entries(RawNode(NodeKind.KERNEL, name, bytes(3368), (), (1, 1, 1), layout=((0, 3368),))) == set()
    assert unused_entries(RawNode(NodeKind.KERNEL, name, bytes(3368), (), (1, 1, 1))) == set()
