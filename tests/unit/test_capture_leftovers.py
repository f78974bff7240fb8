"""Words that hold what is left of older addresses: never taken for numbers, nor numbers for them."""

from __future__ import annotations

import struct

import pytest

from paramgraph_kit.capture.words import Host, classify
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.trace.model import WordKind
from tests.unit.test_capture_words import BASE, node, pair, refusal, twins

CUFFT = "_Z14vector_fft_c2rILj64E3EPTIJLj8EEELj8ELj24E"


@pytest.mark.parametrize(
    ("name", "layout", "flag", "pointer"),
    [
        (CUFFT, ((0, 168),), 0, False),
        (CUFFT, ((0, 168),), 1, False),
        (CUFFT, ((0, 168),), 16, True),  # no flag: another struct than the known one
        ("library", ((0, 168),), 0, True),
        ("library", ((0, 112), (112, 1), (120, 48)), 1, False),
        ("library", ((0, 112), (112, 4), (116, 4), (120, 48)), 1, False),
    ],
)
def test_a_flag_below_the_rest_of_an_older_address_is_not_rewritten(
    name: str, layout: tuple[tuple[int, int], ...], flag: int, pointer: bool
) -> None:
    # GIVEN a struct with a flag of one byte, and above it what is left of an address that an earlier kernel was given
    def fft(base: int) -> RawNode:
        flagged = struct.pack("<Q", base + 256 + flag)
        return node(base, bytes(104), flagged, base + 512, bytes(40), name=name, layout=layout)

    both = pair([(fft(BASE[0]), fft(BASE[1]))], [twins(0, 0, 4096)])
    # WHEN compared THEN it is an address only where a whole one may be
    if layout[1:] == ((112, 4), (116, 4), (120, 48)):
        assert refusal(*both).code == "unexplained-word"  # two numbers of which one differs
        return
    (words,) = classify(*both)
    assert [(w.offset, w.kind) for w in words if w.allocation is not None or w.offset == 112] == [
        (0, WordKind.POINTER),
        (112, WordKind.POINTER if pointer else WordKind.SCALAR),
        (120, WordKind.POINTER),
    ]


@pytest.mark.parametrize(
    ("name", "layout", "accepted"),
    [
        ("library", (), True),
        ("library", ((0, 8),), False),  # a number and its padding
        ("library", ((0, 9),), True),
        ("library", ((0, 4),), False),  # a number; what is behind it in the word is no parameter
        ("library", ((0, 4), (4, 4)), False),
        ("_ZN2at6native29vectorized_elementwise_kernel", ((0, 8),), False),  # a function object: a number and padding
        ("_ZN2at6native13reduce_kernel", ((0, 40),), True),
        ("triton_poi_fused_mul_0", ((0, 8),), False),
    ],
)
def test_a_number_beside_half_a_leftover_address_is_no_address(
    name: str, layout: tuple[tuple[int, int], ...], accepted: bool
) -> None:
    # GIVEN a float that changes from call to call, and the upper half of a host address above it
    def number(value: float) -> RawNode:
        rest = bytes(max(size for _, size in layout) - 8) if layout and layout[0][1] > 8 else b""
        return node(struct.pack("<fI", value, 0x7F3D) + rest, name=name, layout=layout)

    both = pair([(number(2.5), number(3.5))], [twins(0, 0, 4096)])
    host = Host(lambda value: value >> 32 == 0x7F3D)
    # WHEN compared THEN it is bytes left over only where a whole address may have been
    if accepted:
        assert classify(*both, lambda _: None, host)[0][0].evidence.startswith("host addresses")
    else:
        assert refusal(*both, lambda _: None, host).code == "unexplained-word"


CLOSURE = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_12_GLOBAL__N_119launch_clamp_scalarEvENKUlvE_clEvEUlfE_"
)
AMP = (
    "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEEZZNS0_10amp_unscaleEvEUlfE_"
)


@pytest.mark.parametrize(
    ("name", "at", "layout", "accepted"),
    [
        (CLOSURE, 24, ((0, 4), (8, 24), (32, 16)), True),  # two floats and an enum, then where the host has its copy
        (CLOSURE, 40, ((0, 4), (8, 24), (32, 16)), False),  # an address of the kernel's data
        (CLOSURE, 16, ((0, 4), (8, 24), (32, 16)), False),  # what it has captured
        (CLOSURE, 8, ((0, 4), (8, 8), (16, 16)), True),  # nothing but that: a number would have it behind it
        (CLOSURE, 8, ((0, 4), (4, 12), (16, 16)), False),  # aligned to 4 bytes: numbers, and no pointer
        (CLOSURE.replace("EUlfE_", "EFunctor"), 24, ((0, 4), (8, 24), (32, 16)), False),
        (
            CLOSURE.replace("19launch", "13AUnaryFunctor19launch"),
            24,
            ((0, 4), (8, 24), (32, 16)),
            False,
        ),  # a number ends it
        (AMP, 32, ((0, 8), (8, 1), (16, 24)), True),
        (AMP, 24, ((0, 8), (8, 1), (16, 24)), False),
    ],
)
def test_a_closure_of_aten_ends_with_where_the_host_has_its_copy(
    name: str, at: int, layout: tuple[tuple[int, int], ...], accepted: bool
) -> None:
    # GIVEN a word that holds one host address in one capture and another in the other
    def kernel(value: int) -> RawNode:
        data = bytes(at) + struct.pack("<Q", value) + bytes(max(o + n for o, n in layout) - at - 8)
        return node(data, name=name, layout=layout)

    heap = 0x55C1 << 32
    both = pair([(kernel(heap + 64), kernel(heap + 4096))], [twins(0, 0, 4096)])
    host = Host(lambda value: value >> 32 == 0x55C1)
    # WHEN compared THEN it is known for what it is only at the end of a closure
    if accepted:
        words = {word.offset: word for word in classify(*both, lambda _: None, host)[0]}
        assert words[at].evidence.startswith("host addresses")
    else:
        assert refusal(*both, lambda _: None, host).code == "unexplained-word"


@pytest.mark.parametrize(
    ("first", "second", "size", "accepted"),
    [
        ((1.5, 0x7FEA), (1.5, 0x55C1), 16, True),
        ((1.5, 0x7FFF), (1.5, 0x8000), 16, False),  # no process has memory there
        ((1.5, 0x7FEA), (2.5, 0x7FEB), 16, False),  # the number itself changes
        ((1.5, 1), (1.5, 2), 16, False),  # a second number may
        ((1.5, 0x7FEA), (1.5, 0x3F80_0000), 16, False),
        ((1.5, 0x7FEA), (1.5, 0x55C1), 24, False),  # behind it is no end of the closure
    ],
)
def test_the_gap_of_a_closure_is_before_its_end_and_holds_half_an_address(
    first: tuple[float, int], second: tuple[float, int], size: int, accepted: bool
) -> None:
    # GIVEN a closure with a number of four bytes, and four more that differ between two captures
    def kernel(number: float, half: int) -> RawNode:
        data = struct.pack("<QfI", 7, number, half) + bytes(size - 8 + 16)
        return node(data, name=CLOSURE, layout=((0, 4), (8, size), (8 + size, 16)))

    both = pair([(kernel(*first), kernel(*second))], [twins(0, 0, 4096)])
    # WHEN compared THEN they are a gap only if nothing else can lie there
    if accepted:
        words = {word.offset: word for word in classify(*both)[0]}
        assert words[8].evidence == "bytes that the kernel does not read"
    else:
        assert refusal(*both).code == "unexplained-word"


@pytest.mark.parametrize(("name", "accepted"), [(CLOSURE, True), (CLOSURE.replace("EUlfE_", "EFunctor"), False)])
def test_a_closure_of_one_byte_has_captured_nothing(name: str, accepted: bool) -> None:
    # GIVEN a function object of one byte, which holds 1 in one capture and 0 in the other
    def kernel(byte: int) -> RawNode:
        return node(struct.pack("<IBxxx", 7, byte) + bytes(16), name=name, layout=((0, 4), (4, 1), (8, 16)))

    both = pair([(kernel(0), kernel(1))], [twins(0, 0, 4096)])
    # WHEN compared THEN a closure's byte is none that it reads, and another function's may be a flag
    if accepted:
        (words,) = classify(*both)
        assert words[0].evidence == "bytes that the kernel does not read"
    else:
        assert refusal(*both).code == "unexplained-word"


@pytest.mark.parametrize(
    ("number", "halves", "size", "accepted"),
    [
        (802816, (BASE[0] >> 32, 0), 16, True),  # a stride in front of a gap, which one capture has found clean
        (802816, (0x7F3D, BASE[1] >> 32), 16, True),
        (802816, (0x55C1, 0x7FFE), 16, True),
        (802816, (0x3FF80000, 0), 16, False),  # a double, or a second number
        (0, (BASE[0] >> 32, 0), 16, False),  # an address, and none
        (802816, (0x55C1, 0), 8, False),  # one value of eight bytes
    ],
)
def test_a_gap_behind_a_number_may_hold_half_an_address_in_one_capture_only(
    number: int, halves: tuple[int, int], size: int, accepted: bool
) -> None:
    # GIVEN a struct of a library's kernel with a number of four bytes in front of a gap [H100: CUTLASS in cuDNN]
    def convolution(half: int) -> RawNode:
        data = struct.pack("<II", number, half) + bytes(size - 8)
        return node(data, name="_ZN17cutlass__5x_cudnn6KernelE", layout=((0, size),))

    both = pair([(convolution(halves[0]), convolution(halves[1]))], [twins(0, 0, 4096)])
    # WHEN compared THEN it is the number, and where it may be anything else it is refused
    if accepted:
        assert classify(*both)[0][0].kind is WordKind.SCALAR
    else:
        assert refusal(*both).code == "unexplained-word"
