from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from paramgraph_kit.capture.unused import ATEN, unused_bytes
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.kernel_names import may_write_addresses
from paramgraph_kit.trace.model import NodeKind

PHANTOM = 0x1A80_0000_0000


def is_pointer(value: int) -> bool:
    return PHANTOM <= value < PHANTOM + (1 << 40)


def node(name: str, *parameters: bytes, grid: tuple[int, int, int] = (1, 1, 1)) -> RawNode:
    """A kernel node whose parameters lie one after the other, each aligned to 8 bytes."""
    data, layout = b"", []
    for each in parameters:
        data += bytes(-len(data) % 8)
        layout.append((len(data), len(each)))
        data += each
    return RawNode(NodeKind.KERNEL, name, data, (), grid, layout=tuple(layout))


def divider(divisor: int) -> bytes:
    """IntDivider by the book: the smallest shift with 2**shift >= divisor, and its magic number."""
    shift = 0
    while 1 << shift < divisor:
        shift += 1
    return struct.pack("<III", divisor, (1 << 32) * ((1 << shift) - divisor) // divisor + 1, shift)


def calculator(sizes: Sequence[int], tensors: int, garbage: bytes = b"\xa5") -> bytes:
    """An OffsetCalculator with room for 25 dimensions, garbage in what is not filled."""
    head = struct.pack("<i", len(sizes)) + b"".join(map(divider, sizes))
    head += garbage * (304 - len(head))
    strides = struct.pack(f"<{len(sizes) * tensors}I", *range(len(sizes) * tensors))
    return head + strides + garbage * (100 * tensors - len(strides))


@pytest.mark.parametrize("tensors", [1, 2, 3])
def test_what_an_offset_calculator_holds_is_made_of_shapes_and_what_follows_it_is_not(tensors: int) -> None:
    # GIVEN a closure as elementwise kernels have it: calculator, data pointers, then a number that the host made
    closure = calculator((24, 7), tensors)
    closure += bytes(-len(closure) % 8)
    begin = len(closure)
    closure += struct.pack(f"<{tensors}Qd", *[PHANTOM + 512 * k for k in range(tensors)], 2.5)
    # WHEN asked THEN the calculator's bytes are named, the pointers and the number are not
    found = unused_bytes(node(ATEN + "18elementwise_kernel", struct.pack("<i", 9), closure), is_pointer)
    start = 8
    assert set(range(start + 4, start + 304 + 100 * tensors)) <= found
    assert not found & set(range(start + begin, start + len(closure)))
    # AND where it is no kernel of ATen's, or its layout is unknown, nothing is but the gap
    assert unused_bytes(node("triton_poi_fused", struct.pack("<i", 9), closure), is_pointer) == {4, 5, 6, 7}
    assert unused_bytes(RawNode(NodeKind.KERNEL, ATEN, closure, ()), is_pointer) == set()


def test_two_calculators_in_a_row_are_both_found() -> None:
    # GIVEN a reduction's struct: 64 bytes of numbers, a calculator for one tensor, one for two, a pointer
    struct_of = bytes(range(64)) + calculator((5,), 1) + calculator((8,), 2)
    gap = -len(struct_of) % 8
    struct_of += b"\x77" * gap + struct.pack("<Q", PHANTOM)
    # WHEN asked THEN both are named, the numbers before and the pointer behind are not
    found = unused_bytes(node(ATEN + "13reduce_kernel", struct_of), is_pointer)
    assert found == set(range(68, 468)) | set(range(472, 972))


def test_a_reduction_to_one_number_has_an_empty_calculator_behind_its_input_s() -> None:
    # GIVEN the struct of a sum over everything: no dimension is left for the output, and source and destination follow
    struct_of = bytes(range(72)) + calculator((5,), 1) + struct.pack("<i", 0) + b"\xa5" * 500
    struct_of += b"\x77" * (-len(struct_of) % 8) + struct.pack("<QQ", PHANTOM, PHANTOM + 512)
    name = ATEN + "13reduce_kernelILi512ELi1ENS0_8ReduceOpIfE"
    # WHEN asked THEN both are named, and what is before, between and behind is not
    expected = set(range(76, 476)) | set(range(480, 980))
    assert unused_bytes(node(name, struct_of), is_pointer) == expected
    # AND without an address behind it, or with dimensions that are no calculator's, only the first is
    for broken in (struct_of[:-16] + bytes(16), struct_of[:476] + b"\x01" + struct_of[477:]):
        assert unused_bytes(node(name, broken), is_pointer) == set(range(76, 476))


def test_the_gap_in_a_reduction_s_configuration_is_unused() -> None:
    # GIVEN the struct of a reduction, whose configuration ends with a bool, three bytes of padding and an int
    name = ATEN + "13reduce_kernelILi512ELi1ENS0_8ReduceOpIfE"

    def struct_of(flag: int, vector: int) -> bytes:
        head = bytes(range(64)) + bytes([flag, 0xAA, 0xBB, 0xCC]) + struct.pack("<i", vector)
        return head + calculator((5,), 1) + calculator((8,), 2) + bytes(4) + struct.pack("<Q", PHANTOM)

    # WHEN asked THEN the padding is named, the bool and the int are not
    rest = set(range(76, 476)) | set(range(480, 980))
    assert unused_bytes(node(name, struct_of(1, 4)), is_pointer) == rest | {65, 66, 67}
    # AND where one of them is no bool or no size of a vector, nothing is
    assert unused_bytes(node(name, struct_of(2, 4)), is_pointer) == rest
    assert unused_bytes(node(name, struct_of(1, 5)), is_pointer) == rest


def test_numbers_that_only_resemble_a_calculator_are_none() -> None:
    # GIVEN the same bytes with one magic number off by one
    data = bytearray(calculator((24, 7), 1))
    data[8] ^= 1
    assert unused_bytes(node(ATEN, bytes(data)), is_pointer) == set()


def test_a_scalar_argument_is_never_unused() -> None:
    # GIVEN a fill's parameters: count, the value, the pointer WHEN asked THEN only the gap behind the count is
    name = ATEN + "29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_"
    found = unused_bytes(
        node(name, struct.pack("<i", 1), struct.pack("<q", 77), struct.pack("<Q", PHANTOM)), is_pointer
    )
    assert found == {4, 5, 6, 7}
    # AND a filled byte is no empty functor, and a captured bool is one of two numbers
    assert unused_bytes(node(ATEN + "FillFunctorIh", b"\xd0"), is_pointer) == set()
    assert unused_bytes(node(ATEN + "BUnaryFunctor", b"\xd0"), is_pointer) == set()
    assert unused_bytes(node(ATEN + "lambda", b"\x01"), is_pointer) == set()
    assert unused_bytes(node(ATEN + "lambda", b"\xd0"), is_pointer) == {0}
    assert unused_bytes(node(ATEN + "BinaryFunctor", b"\x01"), is_pointer) == {0}


def test_of_a_concatenation_only_entries_behind_the_batch_are_unused() -> None:
    # GIVEN three tensors in a batch with room for 16: pointers, then shapes
    metadata = struct.pack("<16Q", *[PHANTOM + k for k in range(3)], *[0x5A5A] * 13) + bytes(200)
    kernel = node(ATEN + "19CatArrayBatchedCopy", struct.pack("<Q", PHANTOM), metadata, bytes(32), grid=(8, 3, 1))
    # WHEN asked THEN the three pointers and the output are not
    assert unused_bytes(kernel, is_pointer) == set(range(8 + 24, 8 + len(metadata) + 32))


def test_behind_the_flag_of_a_random_state_is_padding() -> None:
    # GIVEN a captured generator state: pointers to seed and offset, an offset, true
    state = struct.pack("<QQQ", PHANTOM, PHANTOM + 8, 4) + b"\x01" + b"\x99" * 7
    name = ATEN + "distribution_kernelI16PhiloxCudaState"
    # WHEN asked THEN seven bytes are; and none where it holds numbers instead of pointers
    assert unused_bytes(node(name, state), is_pointer) == set(range(25, 32))
    assert unused_bytes(node(name, state[:24] + bytes(8)), is_pointer) == set()


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("_ZN2at4cuda6detail25prepare_grouped_gemm_dataE", True),
        ("_ZN49_GLOBAL__N__elementwise_kernel_with_indexIiZZZZN2at6native15arange_cuda_outE", True),
        (f"{ATEN}29elementwise_kernel_with_indexIiZZZZNS0_15arange_cuda_outE", True),
        (f"{ATEN}29vectorized_elementwise_kernelILi4E", False),
        ("triton_poi_fused_mul_0", False),
        ("pgk_copy", False),
    ],
)
def test_kernels_that_may_write_addresses_to_memory_are_told_by_name(name: str, may: bool) -> None:
    # GIVEN a kernel's name WHEN asked THEN only what is known to write none is trusted
    assert may_write_addresses(name) is may
