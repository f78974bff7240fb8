"""Gaps of kernels that read at computed places, and of others that an H200 has shown."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from paramgraph_kit.capture.unused import ATEN, unused_bytes
from tests.unit.test_capture_unused import PHANTOM, REDUCE, STRIDED, calculator, is_pointer, node, reduction

INDEX = ATEN + "24index_elementwise_kernelILi128ELi4EZNS0_"
TAKE = f"{INDEX}20cuda_take_put_kernelIfiZZZZZNS0_11take_kernelEvEUlRfiE_EEvlSE_"
COUNT = struct.pack("<q", 9)
STATE = 0x7F00_0000_0000  # the address of a tensor that is the state's: no capture's own
FLOATS = struct.pack("<f", 2.5)


def closure(sizes: Sequence[int], tensors: int, behind: bytes) -> bytes:
    """Calculator, gap, addresses of the state, and what follows; an older address lies in what is not filled."""
    head = bytearray(calculator(sizes, tensors))
    head[404:412] = struct.pack("<Q", PHANTOM) if len(sizes) < 8 and tensors > 1 else head[404:412]
    return bytes(head) + b"\xa5" * (-len(head) % 8) + struct.pack(f"<{tensors}Q", *[STATE] * tensors) + behind


@pytest.mark.parametrize("sizes", [(), (5,), (24, 7)])
@pytest.mark.parametrize(
    ("name", "tensors", "behind"),
    [
        (f"{INDEX}22index_copy_kernel_implINS0_10OpaqueTypeILi4EEEEEvEUliE_EEvlT1_", 3, bytes(16)),
        (f"{ATEN}34_scatter_gather_elementwise_kernelIZNS0_36_cuda_scatter_gather_internal_kernelI", 3, bytes(32)),
        (f"{INDEX}16gpu_index_kernelIZNS0_17index_kernel_implINS0_10OpaqueTypeILi2EEEEE", 3, bytes(608)),
        (f"{STRIDED}22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaEvEUlbE_EEviT1_", 2, bytes(16)),
    ],
)
def test_what_lies_behind_the_dimensions_is_known_by_the_kernel_and_not_by_addresses(
    name: str, tensors: int, behind: bytes, sizes: tuple[int, ...]
) -> None:
    # GIVEN a closure as these kernels have it, over the state's tensors: no address of the capture shows where it ends
    inner = closure(sizes, tensors, behind)
    kernel = node(name, COUNT, inner)
    # WHEN asked THEN all of the calculator that is not filled is named, and nothing behind it but one-byte functions
    end = 304 + 100 * tensors
    stale = set(range(404, 412)) if tensors > 1 else set()
    expected = {at for at in range(end) if inner[at] == 0xA5 or at in stale}
    found = {at - 8 for at in unused_bytes(kernel, is_pointer) if at >= 8}
    assert expected <= found
    assert not found & {*range(4), *range(-(-end // 8) * 8, -(-end // 8) * 8 + 8 * tensors)}
    # AND where the closure has another size, no zero is taken for a calculator
    if not sizes:
        assert expected - {at - 8 for at in unused_bytes(node(name, COUNT, inner + bytes(8)), is_pointer)}


def take(sizes: Sequence[int], other: Sequence[int], flag: int) -> bytes:
    gap = bytes([flag]) + b"\xa5" * 3
    return closure(sizes, 2, struct.pack("<q", 9) + gap + calculator(other, 1) + struct.pack("<Q", STATE))


@pytest.mark.parametrize("sizes", [(), (5,)])
@pytest.mark.parametrize("other", [(), (3, 2)])
def test_taking_has_two_calculators_and_a_flag_between(sizes: tuple[int, ...], other: tuple[int, ...]) -> None:
    # GIVEN what take and put are given
    inner = take(sizes, other, flag=0)
    garbage = {at for at, byte in enumerate(inner) if byte == 0xA5} | set(range(404, 412))
    # WHEN asked THEN garbage is named, flag, counts and addresses are not
    found = {at - 8 for at in unused_bytes(node(TAKE, COUNT, inner), is_pointer) if at >= 8}
    assert garbage <= found
    assert not found & {*range(504, 529), *range(936, 944)}
    # AND nothing in a closure whose flag is none, or whose second calculator is none
    broken = bytearray(take((), (), flag=0))
    broken[532] = 26
    for data in (take((), (), flag=2), bytes(broken)):
        assert not {at for at in unused_bytes(node(TAKE, COUNT, data), is_pointer) if 512 <= at < 540}


def test_half_a_spectrum_has_calculators_of_its_own() -> None:
    # GIVEN dimensions, sizes and strides of eight bytes, and a mask: two of 25 dimensions are filled
    garbage = b"\xa5"
    filled = struct.pack("<i", 2) + garbage * 4 + struct.pack("<2q", 3, 30) + garbage * 184
    strided = filled + struct.pack("<2q", 1, 3) + garbage * 184
    mirrored = strided + struct.pack("<I", 1) + garbage * 4
    name = f"{ATEN}26_fft_conjugate_copy_kernelIN3c107complexIfEE16OffsetCalculatorILi1ElLb0EENS0_33HermitianSymmetry"
    parts = (COUNT, struct.pack("<Q", PHANTOM), struct.pack("<Q", PHANTOM), strided, mirrored)
    kernel = node(name, *parts)
    # WHEN asked THEN exactly the rest is named
    assert unused_bytes(kernel, is_pointer) == {at for at, byte in enumerate(kernel.parameters) if byte == 0xA5}
    # AND nothing where a count of dimensions is none, or a struct is larger
    for other in ((*parts[:4], b"\x1a" + mirrored[1:]), (*parts[:4], mirrored + bytes(8))):
        assert not unused_bytes(node(name, *other), is_pointer)


@pytest.mark.parametrize(("kind", "width"), [("f", 4), ("N3c108BFloat16E", 2), ("l", 8), ("h", 1)])
def test_the_least_and_the_largest_together_begin_with_an_operation_and_two_numbers(kind: str, width: int) -> None:
    # GIVEN what starts with a byte for the operation and two numbers, aligned to their size
    pair = b"\xa5" * width + b"\x11" * 2 * width
    data = pair + b"\xa5" * (-len(pair) % 4) + reduction((5,), ())[8:]
    name = f"{ATEN}13reduce_kernelILi512ELi1ENS0_8ReduceOpI{kind}NS0_9MinMaxOpsIffiEEjfLi4ELi4EEEEEvT1_"
    # WHEN asked THEN what is around the numbers is named
    found = unused_bytes(node(name, data), is_pointer)
    assert found & set(range(len(pair) + 3)) >= {at for at in range(len(pair)) if data[at] == 0xA5}
    assert not found & set(range(width, 3 * width))


@pytest.mark.parametrize("inner", [(), (5,)])
def test_sums_of_wide_numbers_lie_in_one_place_only(inner: tuple[int, ...]) -> None:
    # GIVEN a sum of complex numbers whose gap behind a flag is all zero: as if everything began eight bytes earlier
    data = b"\xa5" * 8 + struct.pack("<2f", 1.5, 0) + reduction(inner, ())[8:]
    name = REDUCE[:-1] + "N3c107complexIfEENS0_14func_wrapper_tIS5_ZNS0_11sum_functorIS5_S5_S5_EEEjS5_Li4EEEEEvT1_"
    zeroed = bytearray(data)
    zeroed[64:76] = struct.pack("<iii", 0, 1, 0)
    flag = 16 + 56
    zeroed[flag : flag + 4] = bytes(4)
    for each in (data, bytes(zeroed)):
        # WHEN asked THEN the gaps are those of the sum
        found = unused_bytes(node(name, each), is_pointer)
        assert found >= {*range(8), *range(flag + 1, flag + 4)}
        assert not found & {*range(8, flag + 1), *range(flag + 4, flag + 8)}


def test_numbers_of_half_types_and_of_complex_types_have_gaps_of_their_own() -> None:
    # GIVEN a number of two bytes, and a complex one behind a function of one byte, both before the host's address
    host = struct.pack("<Q", 1 << 40)
    name = f"{ATEN}29vectorized_elementwise_kernelILi8EZZZNS0_17huber_kernel_cudaERNS_14TensorIteratorEdE"
    half = node(f"{name}EUlN3c108BFloat16ES7_E_St5arrayIPcLm3EEEEviT0_T1_", COUNT, b"\xda\x40" + b"\xa5" * 6 + host)
    float32 = node(f"{name}EUlffE_St5arrayIPcLm3EEEEviT0_T1_", COUNT, FLOATS + b"\xa5" * 4 + host)
    alias = name.replace("huber_kernel", "addcmul_cuda_kernel") + "EUlNS4_8BFloat16ESA_SA_E_St5arrayIPcLm4EEEEviT0_T1_"
    held = node(alias, COUNT, FLOATS + b"\xa5" * 4 + host)
    functor = "13AUnaryFunctorIN3c107complexIfEES6_S6_NS0_15binary_internal10MulFunctorIS6_EEEEEEvRNS_EUliE_EEviT1_"
    number = b"\xa5" * 8 + struct.pack("<2f", 0.5, 0)
    product = node(f"{STRIDED}22gpu_kernel_impl_nocastINS0_{functor}", COUNT, closure((5,), 2, number + host))
    for kernel, gaps in (
        (half, range(10, 16)),
        (float32, range(12, 16)),
        (held, range(12, 16)),
        (product, range(8 + 520, 8 + 528)),
    ):
        # WHEN asked THEN the gap is named, and neither the number nor the address
        found = unused_bytes(kernel, is_pointer)
        begin = 8 if len(kernel.parameters) < 64 else 8 + 520
        assert found & set(range(begin, len(kernel.parameters))) == set(gaps), kernel.name


def test_the_operation_of_a_scan_has_no_members_and_another_byte_may_be_a_flag() -> None:
    # GIVEN a scan's operation, a byte that happens to be 0
    name = f"{ATEN}28tensor_kernel_scan_outer_dimIN3c108BFloat16EjZZZNS0_31launch_logcumsumexp_cuda_kernelEEvPT_"
    kernel = node(name, COUNT, b"\x80\xff", b"\x00")
    # WHEN asked THEN it is named; of a kernel that may hold a flag it is not
    assert 16 in unused_bytes(kernel, is_pointer)
    assert 16 not in unused_bytes(node(f"{ATEN}9my_kernelEb", COUNT, b"\x80\xff", b"\x00"), is_pointer)


HISTOGRAM = (
    "_ZN2at4cuda17kernelHistogram1DIiilLi1ELi2ELin1ELNS0_23CUDAHistogramMemoryTypeE0EZNS0_21CUDA_tensor_histogramIiiLb0E"
    "EEbNS_6TensorES4_S4_lNS_14AccumulateTypeIT0_Lb1EE4typeES8_NS0_13TensorArgTypeES9_S9_EUllE0_EEvNS0_6detail10Tenso"
)


def info(address: int, *dims: tuple[int, int]) -> bytes:
    """What describes a tensor with (size, stride) of each dimension: room for 25, garbage behind and at the end."""
    lists = [struct.pack(f"<{len(dims)}q", *column).ljust(200, b"\xa5") for column in zip(*dims, strict=True)]
    return struct.pack("<Q", address) + b"".join(lists or [b"\xa5" * 400]) + struct.pack("<i", len(dims)) + b"\xa5" * 4


@pytest.mark.parametrize("operation", [b"\xa5", info(STATE, (64, 1))])
def test_a_histogram_without_partial_results_describes_an_empty_tensor(operation: bytes) -> None:
    # GIVEN a histogram in shared memory: nothing of the second tensor is filled in; weighted or not [H200: experts]
    tensors = info(PHANTOM, (8, 1)), info(0), info(PHANTOM + 512, (4, 2), (2, 1))
    numbers = [struct.pack("<q", n) for n in (8, 0, 7, 16)]
    kernel = node(HISTOGRAM, *tensors, *numbers, operation)
    # WHEN asked THEN exactly what is not filled is named
    assert unused_bytes(kernel, is_pointer) == {at for at, byte in enumerate(kernel.parameters) if byte == 0xA5}
    # AND nothing where it is no such struct, another function or another kernel
    broken = tensors[0][:-8] + struct.pack("<i", 26) + bytes(4), *tensors[1:]
    assert not unused_bytes(node(HISTOGRAM, *broken, *numbers, operation), is_pointer)
    assert not unused_bytes(node(HISTOGRAM, *tensors, *numbers, bytes(8)), is_pointer)
    assert not unused_bytes(node(HISTOGRAM, *tensors, *numbers, bytes(8), operation), is_pointer) & set(range(1248))
    assert not unused_bytes(node(HISTOGRAM.replace("Memory", "Other"), *tensors, *numbers, operation), is_pointer)


@pytest.mark.parametrize(
    ("kind", "named"), [("index", True), ("index_put", True), ("index_put_kernel_quantized", False)]
)
def test_an_index_ends_with_a_function_without_members(kind: str, named: bool) -> None:
    # GIVEN a closure of indexing whose last eight bytes are a function and what fills it up [H200: a schedule's table]
    length = len(f"{kind}_kernel_impl")
    name = f"{INDEX}16gpu_index_kernelIZNS0_{length}{kind}_kernel_implINS0_10OpaqueTypeILi4EEEEEvRNS_18TensorIterator"
    kernel = node(name, COUNT, closure((5,), 3, bytes(600) + b"\xa5" * 8))
    # WHEN asked THEN it is named where that function holds nothing
    assert (set(range(1240, 1248)) <= unused_bytes(kernel, is_pointer)) == named
    assert not unused_bytes(kernel, is_pointer) & set(range(640, 1240))
