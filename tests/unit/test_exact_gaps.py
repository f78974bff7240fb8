"""Exactly which bytes of kernels' parameters nobody reads: none too few, and none that is a number or an address."""

from __future__ import annotations

import struct

import pytest

from paramgraph_kit.capture.calculators import _divides, is_calculator, unused_of_calculator
from paramgraph_kit.capture.elementwise import unused_of_elementwise
from paramgraph_kit.capture.multi_tensor import unused_entries
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.kernel_names import ATEN
from paramgraph_kit.trace.model import NodeKind
from tests.unit.test_capture_multi_tensor import KERNELS, packed
from tests.unit.test_capture_unused import calculator, node

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
