"""Exactly which bytes of kernels' parameters nobody reads: none too few, and none that is a number or an address."""

from __future__ import annotations

import struct
from contextlib import nullcontext

import pytest
import torch

from paramgraph_kit.capture.calculators import _divides, is_calculator, unused_of_calculator
from paramgraph_kit.capture.elementwise import unused_of_elementwise
from paramgraph_kit.capture.multi_tensor import unused_entries
from paramgraph_kit.capture.pair import capture_pair, describe
from paramgraph_kit.capture.unused import _offset_calculators, fields
from paramgraph_kit.capture.words import Side, _differ_beside_a_number, notable_words
from paramgraph_kit.driver.api import RawAllocation, RawNode
from paramgraph_kit.driver.kernel_names import ATEN
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind, WordKind
from tests.integration.launch_bench import DRIVER
from tests.unit.test_capture_multi_tensor import KERNELS, packed
from tests.unit.test_capture_unused import PHANTOM, calculator, is_pointer, node

BASE = (1 << 44, 3 << 44)
GARBAGE = 0xA5
WORD = 0xA5A5_A5A5_A5A5_A5A5


@pytest.mark.parametrize(
    ("divisor", "magic", "shift", "right"),
    [
        (0, 1, 0, False),
        (1, 1, 0, True),
        (2, 1, 1, True),
        (3, 1431655766, 2, True),
        (3, 1431655766, 3, False),
        (1 << 30, 1, 30, True),
        ((1 << 31) - 1, 3, 31, True),
        (1 << 31, 1, 31, False),
    ],
)
def test_a_divider_is_known_from_one_to_the_largest_size(divisor: int, magic: int, shift: int, right: bool) -> None:
    # GIVEN numbers WHEN asked THEN only those are a divider with which the divisor's quotients come out
    assert _divides(divisor, magic, shift) is right


@pytest.mark.parametrize("tensors", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(), (1,), (5,), (3,) * 24, (1,) * 25])
def test_of_a_calculator_exactly_what_is_not_filled_is_unused(sizes: tuple[int, ...], tensors: int) -> None:
    # GIVEN one behind twelve bytes WHEN asked THEN it is known by its dimensions, of which it may have 25
    data = bytes(12) + calculator(sizes, tensors)
    garbage = {at for at, byte in enumerate(data) if byte == GARBAGE}
    assert unused_of_calculator(data, 12, tensors) == garbage
    assert is_calculator(data, 12) is bool(sizes)
    # AND one with more than that is none
    assert unused_of_calculator(bytes(12) + struct.pack("<i", 26) + data[16:], 12, tensors) is None
    assert unused_of_calculator(bytes(12) + struct.pack("<i", -1) + data[16:], 12, tensors) is None


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("blocks", [[0], [0, 0, 1, 2, 2]])
def test_of_lists_of_tensors_exactly_what_is_not_filled_is_unused(kernel: str, blocks: list[int]) -> None:
    # GIVEN a launch over some tensors, garbage behind them WHEN asked THEN all garbage is named, and nothing else
    given = packed(kernel, 0x1A80_0000_0000, blocks, WORD)
    assert unused_entries(given) == {at for at, byte in enumerate(given.parameters) if byte == GARBAGE}


@pytest.mark.parametrize("kernel", KERNELS)
def test_lists_of_tensors_are_full_and_no_more(kernel: str) -> None:
    # GIVEN as many tensors as there is room for, each in a block WHEN asked THEN no address is named
    room = KERNELS[kernel][3]
    full = packed(kernel, 0x1A80_0000_0000, list(range(room)), WORD)
    named = unused_entries(full)
    assert named
    assert not named & set(range(8 * room * KERNELS[kernel][2]))
    # AND nothing at all where there is one tensor more, no block, too many, or another dimension of them
    at = full.parameters.index(struct.pack("<3H" if KERNELS[kernel][5] == 2 else "<3B", 0, 1, 2))
    data = bytearray(full.parameters)
    data[at : at + KERNELS[kernel][5]] = struct.pack("<H" if KERNELS[kernel][5] == 2 else "<B", room)
    most = 2240 if KERNELS[kernel][5] == 2 else 320
    for grid, parameters in (
        (full.grid, bytes(data)),
        ((0, 1, 1), full.parameters),
        ((most + 1, 1, 1), full.parameters),
        ((1, 2, 1), full.parameters),
    ):
        other = RawNode(NodeKind.KERNEL, full.name, parameters, (), grid, layout=full.layout)
        assert unused_entries(other) == set()
    # AND as many blocks as there is room for are read
    data = bytearray(full.parameters)
    data[at : at + most * KERNELS[kernel][5]] = bytes(most * KERNELS[kernel][5])
    most_blocks = RawNode(NodeKind.KERNEL, full.name, bytes(data), (), (most, 1, 1), layout=full.layout)
    assert unused_entries(most_blocks)
    assert not unused_entries(most_blocks) & set(range(at, at + most * (4 + KERNELS[kernel][5])))


def test_a_functor_and_its_operation_are_named_where_they_are_of_one_byte() -> None:
    # GIVEN lists of tensors, then what is computed: a functor, an operation, a number
    lists = packed("one list, 4 KB", 0x1A80_0000_0000, [0], WORD)
    own = unused_entries(lists)

    def beside(arguments: str, *sizes: int) -> set[int]:
        layout = [*lists.layout]
        for size in sizes:
            layout.append((sum(layout[-1]), size))
        name = f"{lists.name}EEEJ{arguments}"
        data = lists.parameters + bytes(sum(sizes))
        return unused_entries(RawNode(NodeKind.KERNEL, name, data, (), (1, 1, 1), layout=tuple(layout))) - own

    end = sum(lists.layout[0])
    # WHEN asked THEN what has no members is named: the first, and the second where it is of a class
    assert beside("f", 1, 4) == {end}
    assert beside("b", 1, 1) == {end}
    assert beside("St4plusIfE", 1, 1) == {end, end + 1}
    assert beside("N2at4CopyE", 4, 1) == {end + 4}
    assert beside("ZNS_3addE", 1, 1, 1) == {end, end + 1}
    assert beside("St4plusIfE", 8, 8) == set()


def test_of_an_unrolled_kernel_what_loads_and_stores_is_named_and_no_count_or_function() -> None:
    # GIVEN (count, function, addresses, two calculators, what loads, what stores), most of one byte
    name = f"{ATEN}27unrolled_elementwise_kernelINS0_13BinaryFunctorIbbb"
    parts = [b"\x01", b"\x01", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"]
    kernel = node(name, *parts)
    # WHEN asked THEN from the fourth on those of one byte hold nothing
    assert unused_of_elementwise(kernel) == {start for start, _ in kernel.layout[3:]}
    # AND in a kernel of another number of parameters nothing is known
    assert unused_of_elementwise(node(name, *parts, b"\x06")) == set()
    assert unused_of_elementwise(node(name, *parts[:-1])) == set()


@pytest.mark.parametrize("tensors", [1, 2, 8])
def test_a_calculator_has_room_to_its_end(tensors: int) -> None:
    # GIVEN one behind a number WHEN looked for THEN it is found where all of it is there, and to the last stride
    whole = bytes(4) + calculator((5,), tensors)
    assert _offset_calculators(bytes(8) + whole, lambda _: False) == [(16, 416)]
    assert _offset_calculators(whole[4:], lambda _: False) == [(4, 304 + 100 * tensors)]
    assert _offset_calculators(calculator((5,), 1)[:-4], lambda _: False) == []
    # AND what follows it shows its end
    followed = bytes(8) + calculator((5,), tensors)
    followed += bytes(-len(followed) % 8) + struct.pack("<Q", PHANTOM)
    assert _offset_calculators(followed, is_pointer) == [(12, 312 + 100 * tensors)]


@pytest.mark.parametrize(("flag", "known"), [(0, True), (1, True), (2, False), (255, False)])
def test_cufft_s_flag_is_none_or_one(flag: int, known: bool) -> None:
    # GIVEN its struct WHEN asked THEN it is told apart around a flag that is one
    data = bytearray(168)
    data[112] = flag
    kernel = node("_Z10vector_fftILj64E", bytes(data))
    assert fields(kernel) == (((0, 112), (112, 1), (120, 48)) if known else ((0, 168),))


@pytest.mark.parametrize(("size", "beside"), [(8, False), (9, True), (16, True)])
def test_a_number_beside_half_an_address_lies_in_a_struct_of_more_than_a_word(size: int, beside: bool) -> None:
    # GIVEN two words that differ in what a library's struct has beside a number of four bytes
    kernel = RawNode(NodeKind.KERNEL, "ampere_sgemm", bytes(16), (), layout=((0, size),))
    values = 0x7F3D_0000_0007, 0x55C1_0000_0007
    # WHEN asked THEN that is so in a struct, and never of a parameter of its own
    assert _differ_beside_a_number(kernel, 0, values, (False, False)) is beside
    # AND neither where the number differs, nor where there is none, nor beside what no host has
    assert not _differ_beside_a_number(kernel, 0, (values[0], values[1] + 1), (False, False))
    assert not _differ_beside_a_number(kernel, 0, (0x7F3D << 32, 0x55C1 << 32), (False, False))
    assert not _differ_beside_a_number(kernel, 0, (0x1234_0000_0007, values[1]), (False, False))
    assert _differ_beside_a_number(kernel, 0, (0x1234_0000_0007, values[1]), (True, False)) is beside
    assert _differ_beside_a_number(kernel, 0, (7, values[1]), (False, False)) is beside


@pytest.mark.parametrize(
    ("eager", "anchored", "sure"), [(False, 0, True), (True, 1, True), (True, 0, False), (False, 1, True)]
)
def test_storages_begin_elsewhere_for_code_that_may_look_at_them_alone(eager: bool, anchored: int, sure: bool) -> None:
    # GIVEN code that looks at its input from its storage's beginning on
    def run(inputs: list[torch.Tensor]) -> tuple[torch.Tensor]:
        return (inputs[0].as_strided((2,), (1,), 0) + 1,)

    given = [torch.ones(4, device=DRIVER.device)]
    # WHEN captured THEN that is sure where torch has made the code, or each launch asks where storages begin
    with nullcontext() if sure else pytest.raises(RefusedError):
        found = capture_pair(DRIVER, run, describe(DRIVER, given), (), eager=eager, anchored=anchored)
        DRIVER.discard(found.recording)


def test_a_partition_s_code_says_of_itself_no_more_than_it_is_told() -> None:
    # GIVEN code of which nothing is said WHEN asked THEN its layouts never change, and nothing is to be cut anew
    code = PartitionCode("forward 0", lambda inputs: inputs)
    assert not code.layouts
    assert (code.constants, code.host_seeds, code.unguarded, code.aligned(), code.recut(ValueError())) == (
        (), (), (), (), None,
    )  # fmt: skip


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(("within", "stale"), [(0, True), (63, True), (64, False)])
def test_a_value_twice_the_same_is_stale_where_one_side_has_an_allocation(side: int, within: int, stale: bool) -> None:
    # GIVEN one value in both captures, in one side's range: inside of what that side allocated, or behind it
    value = (BASE[side] + 4096 * (1 + side)) + within
    nodes = RawNode(NodeKind.KERNEL, "kernel", struct.pack("<Q", value), ())
    sides = [
        Side(
            [nodes],
            [RawAllocation(BASE[n] + 4096 * (1 + n), 64, 0)],
            lambda at, n=n: BASE[n] <= at < BASE[n] + (1 << 40),  # type: ignore[misc]
        )
        for n in (0, 1)
    ]
    # WHEN compared THEN only an allocation's address is one that an earlier capture left behind
    with pytest.raises(RefusedError, match="earlier capture") if stale else nullcontext():
        assert [word.kind for word in notable_words(sides[0], sides[1])[0]] == [WordKind.SCALAR]
