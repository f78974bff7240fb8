from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from paramgraph_kit.capture.jiterator import unused_of_compiled_at_runtime
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


def test_between_a_calculator_and_addresses_is_a_gap_in_closures_that_have_nothing_there() -> None:
    # GIVEN a closure of a comparison of strided tensors: a calculator for three of them, a gap, three addresses [H100]
    closure = calculator((5,), 3) + b"\xa5" * 4 + struct.pack("<3Q", *[PHANTOM] * 3)
    name = ATEN + "18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastI14CompareFunctorIbEEEvEUliE_EEviT1_"
    # WHEN asked THEN the gap is named, and in another kernel, where a number may be, it is not
    gap = set(range(8 + 604, 8 + 608))
    assert gap <= unused_bytes(node(name, struct.pack("<i", 9), closure), is_pointer)
    other = node(name.replace("gpu_kernel_impl", "index_kernel"), struct.pack("<i", 9), closure)
    assert not gap & unused_bytes(other, is_pointer)


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.parametrize("cast", [False, True])
def test_kernels_that_are_compiled_when_they_are_first_used_have_calculators_too(inputs: int, cast: bool) -> None:
    # GIVEN a special function's parameters: count, addresses, two calculators, what casts, a number [H100: lgamma]
    ints = -(-inputs // 4) * 4
    load = bytes([6] * inputs) + b"\xa5" * (ints - inputs) + struct.pack(f"<{inputs}i", *[4] * inputs)
    store = b"\x06" + b"\xa5" * 3 + struct.pack("<i", 4)
    casts = [load, store] if cast else [b"\xa5"] * 2
    addresses = struct.pack(f"<{inputs + 1}Q", *[PHANTOM] * (inputs + 1))
    calculators = [calculator((5,), inputs), calculator((5,), 1)]
    fields = [struct.pack("<i", 9), addresses, *calculators, *casts, struct.pack("<f", 1.5)]
    kernel = node("lgamma_kernel_kernel", *fields)
    inside = {at for start, size in kernel.layout for at in range(start, start + size)}
    # WHEN asked THEN exactly what nobody has written is named
    garbage = {at for at in inside if kernel.parameters[at] == 0xA5}
    assert unused_bytes(kernel, is_pointer) & inside == garbage
    # AND where nothing is strided, one byte stands for a calculator
    whole = node("lgamma_kernel_kernel", fields[0], fields[1], b"\xa5", b"\xa5", b"\xa5", b"\xa5", fields[-1])
    empty = {start for start, size in whole.layout if size == 1}
    assert len(empty) == 4
    assert empty <= unused_bytes(whole, is_pointer)
    # AND nothing of a kernel that only resembles it, or has another name
    for other in (node("lgamma_kernel_kernel", *fields[:-1]), node("triton_poi_kernel_0", *fields)):
        assert not unused_bytes(other, is_pointer) & {
            at for start, size in other.layout for at in range(start, start + size)
        }


WIDTHS = {"d": 8, "l": 8, "f": 4, "i": 4, "s": 2, "a": 1, "h": 1, "b": 1}  # of types, as mangled names have them


@pytest.mark.parametrize(("kind", "width"), [*WIDTHS.items(), ("N3c104HalfE", 2), ("N3c108BFloat16E", 2)])
def test_of_the_least_and_the_largest_the_two_that_it_starts_with_are_read(kind: str, width: int) -> None:
    # GIVEN what computes both: the operation, empty, two numbers, and what fills it up
    head = b"\xa5" * width + b"\x11" * (2 * width)
    head += b"\xa5" * (-len(head) % 4)
    data = reduction((5,), (8,), head=head)
    # WHEN asked THEN all but the numbers is named
    found = unused_bytes(node(f"{REDUCE[:-1]}{kind}NS0_9MinMaxOpsI{kind}", data), is_pointer)
    assert found & set(range(len(head))) == {at for at in range(len(head)) if head[at] == 0xA5}


def test_of_an_index_of_the_largest_the_gaps_of_a_pair_are_named() -> None:
    # GIVEN what starts with a pair of a number and its index: one byte for the operation, then the pair [H100: argmax]
    for kind, width in WIDTHS.items():
        pair = b"\x11" * width + b"\xa5" * (8 - width) + struct.pack("<q", 0)
        data = b"\xa5" * 8 + pair + reduction((5,), ())[8:]
        # WHEN asked THEN the gaps around the number are
        found = unused_bytes(node(f"{REDUCE}NS0_9ArgMaxOpsI{kind}EEjlLi4ELi4EEEEEvT1_", data), is_pointer)
        assert found & set(range(24)) == {at for at in range(24) if data[at] == 0xA5}


STRIDED = f"{ATEN}18elementwise_kernelILi128ELi4EZNS0_"


@pytest.mark.parametrize(
    ("function", "tensors", "members"),
    [
        ("22gpu_kernel_impl_nocastIZZZNS0_26GeluBackwardCUDAKernelImplEvEUlffE_EEvERKT_EUliE_EEviT1_", 3, 0),
        (
            "15gpu_kernel_implINS0_13BinaryFunctorIN3c108BFloat16ES5_S5_ZZZNS0_19maximum_kernelEUlS5_S5_E_EEEEvEUliE_",
            3,
            3,
        ),
        ("22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaEvEUlbE_EEvS4_RKT_EUliE_EEviT1_", 2, 0),
    ],
)
def test_a_function_without_members_is_a_gap_in_a_closure_over_strided_tensors(
    function: str, tensors: int, members: int
) -> None:
    # GIVEN calculator, addresses, a function of one byte, a type for each tensor where it casts, an address of the host
    closure = calculator((5,), tensors)
    closure += b"\xa5" * (-len(closure) % 8) + struct.pack(f"<{tensors}Q", *[PHANTOM] * tensors)
    behind = b"\xa5" + b"\x0f" * members + b"\xa5" * (7 - members)
    kernel = node(STRIDED + function, struct.pack("<i", 9), closure + behind + struct.pack("<Q", 1 << 40))
    # WHEN asked THEN what stands around the types is named
    at = 8 + len(closure)
    found = unused_bytes(kernel, is_pointer)
    assert {b for b in found if b >= at} == {at + n for n in range(8) if behind[n] == 0xA5}
    # AND nothing where the closure has room for more
    larger = node(STRIDED + function, struct.pack("<i", 9), closure + behind + bytes(8) + struct.pack("<Q", 1 << 40))
    assert not {b for b in unused_bytes(larger, is_pointer) if b >= at}


@pytest.mark.parametrize(
    ("function", "types"),
    [
        ("22gpu_kernel_impl_nocastINS0_15CUDAFunctor_addIfEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_", 0),
        ("15gpu_kernel_implINS0_15CUDAFunctor_addIN3c104HalfEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_", 3),
        ("22gpu_kernel_impl_nocastINS0_13BinaryFunctorIffbNS0_12_GLOBAL__N_114CompareFunctorIfEEEEEEvEUliE_EEviT1_", 0),
        (
            "22gpu_kernel_impl_nocastINS0_13BinaryFunctorIllbNS0_1_GLOBAL__N_116CompareEqFunctorIlEEEEEvEUliE_EEviT1_",
            0,
        ),
    ],
)
def test_behind_the_one_number_of_a_function_of_two_strided_tensors_is_a_gap(function: str, types: int) -> None:
    # GIVEN calculator, addresses, a factor or the kind of a comparison, types where it casts, a gap, the host's address
    closure = calculator((5,), 3) + b"\xa5" * 4 + struct.pack("<3Q", *[PHANTOM] * 3)
    behind = struct.pack("<f", 1.0) + b"\x06" * types + b"\xa5" * (4 - types)
    kernel = node(STRIDED + function, struct.pack("<i", 9), closure + behind + struct.pack("<Q", 1 << 40))
    # WHEN asked THEN the gap is named, and neither the number nor a type nor an address
    at = 8 + len(closure)
    assert {b for b in unused_bytes(kernel, is_pointer) if b >= at} == {at + n for n in range(4 + types, 8)}
    # AND of what holds two numbers, or another kind of number, nothing is
    for other in ("22CUDAFunctorOnSelf_addIf", "15CUDAFunctor_addId"):
        named = (STRIDED + function).replace("15CUDAFunctor_addIf", other).replace("CompareFunctor", "TwoOfThemFuncs")
        if named != kernel.name:
            found = unused_bytes(node(named, struct.pack("<i", 9), closure + behind + bytes(8)), is_pointer)
            assert not {b for b in found if b >= at}


def test_small_functions_have_gaps_behind_and_before_their_number() -> None:
    # GIVEN addcmul's function (a number, a gap, an address), and a quotient of integers (one byte, a gap, a number)
    body = "ERNS_18TensorIteratorBaseERKN3c106ScalarEENKUlvE0_clEvENKUlvE5_clEvEUlfffE_St5arrayIPcLm4EEEEviT0_T1_"
    product = f"{ATEN}29vectorized_elementwise_kernelILi4EZZZNS0_19addcmul_cuda_kernel{body}"
    held = struct.pack("<f", 0.5) + b"\xa5" * 4 + struct.pack("<Q", 1 << 40)
    quotient = f"{ATEN}29vectorized_elementwise_kernelILi2ENS0_13BUnaryFunctorIlllZZZNS0_9div_truncEUlllE_EE"
    whole = b"\xa5" * 8 + struct.pack("<q", 7)
    for name, function in ((product, held), (quotient, whole)):
        kernel = node(name, struct.pack("<i", 9), function, struct.pack("<4Q", *[PHANTOM] * 4))
        # WHEN asked THEN the gaps are named, and neither number nor address
        found = unused_bytes(kernel, is_pointer)
        assert found & set(range(8, 24)) == {8 + n for n in range(16) if function[n] == 0xA5}
    # AND of a function with two numbers nothing
    two = node(product.replace("19addcmul_cuda", "16threshold_cuda"), struct.pack("<i", 9), held, bytes(32))
    assert not unused_bytes(two, is_pointer) & set(range(8, 24))


def test_the_gap_behind_the_limits_of_a_clamp_is_named_where_tensors_are_strided_too() -> None:
    # GIVEN which limits, both of them, a gap, an address of the host's, and the closure's own [H100]
    limits = struct.pack("<iff", 2, -0.5, 0.5) + b"\xa5" * 4 + struct.pack("<Q", 1 << 40)
    name = "22gpu_kernel_impl_nocastIZZZNS0_19launch_clamp_scalarEvENKUlvE5_clEvEUlfE_EEvERKT_EUliE_EEviT1_"
    closure = calculator((5,), 2) + struct.pack("<2Q", *[PHANTOM] * 2) + limits + struct.pack("<Q", 1 << 40)
    whole = f"{ATEN}29vectorized_elementwise_kernelILi4EZZZNS0_19launch_clamp_scalarEvENKUlvE5_clEvEUlfE_St5array"
    for kernel in (
        node(STRIDED + name, struct.pack("<i", 9), closure),
        node(whole, struct.pack("<i", 9), limits, bytes(16)),
    ):
        at = kernel.parameters.index(limits)
        # WHEN asked THEN the gap is named
        found = unused_bytes(kernel, is_pointer)
        assert found & set(range(at, at + len(limits))) == set(range(at + 12, at + 16))


def test_behind_the_flag_of_a_variance_is_padding() -> None:
    # GIVEN a correction, whether to take the root, and what lies behind that; then what it starts with [H100: std, var]
    for kind, scalar in (("f", "f"), ("f", "S4_"), ("f", "N3c108BFloat16E")):
        data = struct.pack("<f", 1.0) + b"\x00" + b"\xa5" * 3 + bytes(16) + reduction((5,), ())[8:]
        found = unused_bytes(node(f"{REDUCE}NS0_10WelfordOpsI{scalar}{kind}iN4cuda3stdE", data), is_pointer)
        # WHEN asked THEN that is named
        assert found & set(range(24)) == {5, 6, 7}


def test_a_calculator_that_is_a_parameter_is_known_for_as_many_tensors_as_it_has_room_for() -> None:
    # GIVEN a cross product's: for three tensors WHEN asked THEN all behind its dimensions is made of shapes
    kernel = node(
        ATEN + "12cross_kernelIf", struct.pack("<QQQ", *[PHANTOM] * 3), calculator((5,), 3), struct.pack("<i", 3)
    )
    gap = set(range(24 + 604, kernel.layout[-1][0]))
    assert unused_bytes(kernel, is_pointer) == set(range(24 + 4, 24 + 604)) | gap


def test_two_calculators_in_a_row_are_both_found() -> None:
    # GIVEN a reduction's struct: 64 bytes of numbers, a calculator for one tensor, one for two, a pointer
    struct_of = bytes(range(64)) + calculator((5,), 1) + calculator((8,), 2)
    gap = -len(struct_of) % 8
    struct_of += b"\x77" * gap + struct.pack("<Q", PHANTOM)
    # WHEN asked THEN both are named, the numbers before and the pointer behind are not
    found = unused_bytes(node(ATEN + "13reduce_kernel", struct_of), is_pointer)
    assert found == set(range(68, 468)) | set(range(472, 972))


REDUCE = ATEN + "13reduce_kernelILi512ELi1ENS0_8ReduceOpIf"
SUM, MEAN = f"{REDUCE}NS0_14func_wrapper_tIfE", f"{REDUCE}NS0_7MeanOpsIffE"


OF_FLOATS = b"\xa5" * 4 + struct.pack("<f", 1.5)  # the operation, and what it starts with


def reduction(
    inner: Sequence[int],
    outer: Sequence[int],
    *,
    flag: int = 1,
    vector: int = 4,
    outputs: int = 1,
    head: bytes = OF_FLOATS,
) -> bytes:
    """ReduceOp, field by field, 0xa5 in all that its constructor does not fill."""
    head += struct.pack("<14i", *range(14)) + bytes([flag]) + b"\xa5" * 3 + struct.pack("<i", vector)
    head += calculator(inner, 1) + calculator(outer, 2)
    head += b"\xa5" * (-len(head) % 8)
    second = struct.pack("<Q", PHANTOM + 512) if outputs == 2 else b"\xa5" * 8
    addresses = struct.pack("<QQ", PHANTOM, PHANTOM + 256) + second + struct.pack("<QQQq", 0, 0, 0, 7)
    return head + addresses + b"\x01\x00\xa5\xa5" + struct.pack("<i", outputs)


@pytest.mark.parametrize("inner", [(), (5,), (24, 7)])
@pytest.mark.parametrize("outer", [(), (8,), (3, 2)])
@pytest.mark.parametrize("outputs", [1, 2])
def test_of_a_reduction_what_its_constructor_fills_is_read_and_nothing_else(
    inner: tuple[int, ...], outer: tuple[int, ...], outputs: int
) -> None:
    # GIVEN the struct of a reduction: garbage stands where nothing was written
    data = reduction(inner, outer, outputs=outputs)
    # WHEN asked THEN exactly that is named
    garbage = {at for at, byte in enumerate(data) if byte == 0xA5}
    assert unused_bytes(node(SUM, data), is_pointer) == garbage
    # AND what is computed with counts, where it is not known to have no members
    assert unused_bytes(node(MEAN, data), is_pointer) == garbage - set(range(4))


def test_of_a_reduction_over_bytes_the_second_byte_is_a_number() -> None:
    # GIVEN one whose operation is one byte, and what it starts with the next WHEN asked THEN only the first is empty
    data = reduction((5,), (8,), head=b"\xa5\x01\x00\x00")
    found = unused_bytes(node(SUM.replace("IfE", "IbE"), data), is_pointer)
    assert found & {0, 1, 2, 3} == {0}


def test_a_reduction_compiled_at_runtime_is_known_wherever_its_struct_begins() -> None:
    # GIVEN its struct at the beginning of the parameters, and eight bytes behind WHEN asked THEN the same is named
    data = reduction((5,), (8,))
    found = [
        unused_of_compiled_at_runtime(
            RawNode(NodeKind.KERNEL, "reduction_prod_kernel", bytes(at) + data, (), layout=((at, len(data)),))
        )
        for at in (0, 8)
    ]
    assert min(found[0]) >= 0
    assert max(found[0]) > 64
    assert found[1] == {at + 8 for at in found[0]}


def test_a_struct_that_is_no_known_reduction_is_no_excuse() -> None:
    # GIVEN one whose flag is no bool, whose vector has no size of one, or with a field more
    data = reduction((5,), ())
    others = [reduction((5,), (), flag=2), reduction((5,), (), vector=5), data[:-8] + bytes(8) + data[-8:] + bytes(16)]
    for other in others:
        # WHEN asked THEN no gap between its numbers is named
        assert not unused_bytes(node(SUM, other), is_pointer) & {0, 1, 2, 3, 65, 66, 67}


UNROLLED = ATEN + "27unrolled_elementwise_kernelINS0_13AUnaryFunctorE"


def test_what_casts_has_a_gap_between_types_and_sizes() -> None:
    # GIVEN a kernel that reads two types and writes another, as autocast's do: garbage in its gaps and in what is empty
    name = UNROLLED + "St5arrayIPcLm3EELi4ENS0_6memory12LoadWithCastILi2EEENS9_13StoreWithCastILi1EEEEEviT_"
    load = bytes([6, 15]) + b"\xa5" * 2 + struct.pack("<II", 4, 2)
    store = bytes([5]) + b"\xa5" * 3 + struct.pack("<I", 2)
    fields = [struct.pack("<i", 9), struct.pack("<f", 2.0), struct.pack("<3Q", *[PHANTOM] * 3)]
    kernel = node(name, *fields, b"\x01", b"\x00", load, store)
    # WHEN asked THEN the gaps are named and what is empty, and the types, sizes and numbers are not
    starts = [start for start, _ in kernel.layout]
    inside = {at for start, size in kernel.layout for at in range(start, start + size)}
    gaps = {starts[5] + 2, starts[5] + 3, starts[6] + 1, starts[6] + 2, starts[6] + 3, starts[3], starts[4]}
    assert unused_bytes(kernel, is_pointer) & inside == gaps
    # AND where the struct is of another size, nobody is sure of it
    other = node(name, *fields, b"\x01", b"\x00", load + bytes(4), store)
    assert not unused_bytes(other, is_pointer) & set(range(starts[5], starts[5] + 16))


@pytest.mark.parametrize(("number", "size"), [("f", 8), ("d", 16), ("l", 16), ("N3c104HalfE", 8)])
def test_a_product_with_a_number_holds_only_the_number(number: str, size: int) -> None:
    # GIVEN x * 2: a function without members, a gap, the number
    held = f"NS0_13BUnaryFunctorI{number}{number}{number}NS0_15binary_internal10MulFunctorI{number}EEEE"
    name = f"{ATEN}29vectorized_elementwise_kernelILi4E{held}St5arrayIPcLm2EEEEviT0_T1_"
    kernel = node(
        name, struct.pack("<i", 9), b"\xa5" * (size // 2) + b"\x11" * (size // 2), struct.pack("<QQ", PHANTOM, PHANTOM)
    )
    # WHEN asked THEN the number counts
    assert unused_bytes(kernel, is_pointer) == {4, 5, 6, 7} | set(range(8, 8 + size // 2))
    # AND a comparison says how it compares where that function would be
    compared = name.replace("15binary_internal10MulFunctorI", "16CompareEqFunctorI")
    assert unused_bytes(node(compared, *[kernel.parameters[a : a + n] for a, n in kernel.layout]), is_pointer) == {
        4,
        5,
        6,
        7,
    }


@pytest.mark.parametrize(("number", "types"), [("f", 0), ("d", 0), ("N3c108BFloat16E", 0), ("f", 2)])
def test_a_product_with_a_number_holds_only_the_number_where_tensors_are_strided_too(number: str, types: int) -> None:
    # GIVEN what the gradient of a mean is made by: a closure over a calculator for two tensors, their addresses, a
    # function without members, a gap, the number, types where it casts, and an address of the host's [H100]
    held = f"NS0_13BUnaryFunctorI{number}{number}{number}NS0_15binary_internal10MulFunctorI{number}EEEE"
    name = f"{ATEN}18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastI{held}EvERKT_EUliE_EEviT1_"
    gap = 8 if number == "d" else 4
    closure = calculator((512,), 2) + struct.pack("<QQ", PHANTOM, PHANTOM) + b"\xa5" * gap + b"\x11" * gap
    kernel = node(
        name, struct.pack("<i", 9), closure + b"\x06" * types + bytes(-types % 8) + struct.pack("<Q", 1 << 40)
    )
    # WHEN asked THEN the gap is named, and neither the number nor what is behind it
    at = 8 + len(closure) - 2 * gap
    assert {b for b in unused_bytes(kernel, is_pointer) if b >= at} == set(range(at, at + gap))
    # AND of a function with members nothing is
    named = name.replace("15binary_internal10MulFunctorI", "16CompareEqFunctorI")
    compared = node(named, *[kernel.parameters[a : a + n] for a, n in kernel.layout])
    assert not {b for b in unused_bytes(compared, is_pointer) if b >= at}


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


@pytest.mark.parametrize(("size", "known"), [(216, True), (416, True), (224, False)])
def test_of_a_tensor_s_description_only_the_address_is_one(size: int, known: bool) -> None:
    # GIVEN an address, then sizes and strides for 25 dimensions, of 32 or 64 bits, and how many there are
    info = struct.pack("<Q", PHANTOM) + b"\xa5" * (size - 8)
    kernel = node(ATEN + "21indexSelectSmallIndexIfljEvNS_4cuda6detail10TensorInfoIT_T1_EE", info, info)
    # WHEN asked THEN shapes are no addresses, where the struct is the known one
    shapes = {*range(8, size), *range(size + 8, 2 * size)}
    assert unused_bytes(kernel, is_pointer) == (shapes if known else set())


def test_behind_the_flag_of_a_random_state_is_padding() -> None:
    # GIVEN a captured generator state: pointers to seed and offset, an offset, true
    state = struct.pack("<QQQ", PHANTOM, PHANTOM + 8, 4) + b"\x01" + b"\x99" * 7
    name = ATEN + "distribution_kernelI16PhiloxCudaState"
    # WHEN asked THEN seven bytes are; and none where it holds numbers instead of pointers
    assert unused_bytes(node(name, state), is_pointer) == set(range(25, 32))
    assert unused_bytes(node(name, state[:24] + bytes(8)), is_pointer) == set()
    # AND the same of what counts within the graph in 32 bits, as of no other struct
    short = state[:20] + b"\x01" + b"\x99" * 3
    assert unused_bytes(node(name, short), is_pointer) == {21, 22, 23}
    assert unused_bytes(node(name, short + b"\x01"), is_pointer) == set()


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
