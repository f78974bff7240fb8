"""Memory-efficient attention's structs: what is between their fields is no address, and all else counts."""

from __future__ import annotations

import struct

import pytest

from paramgraph_kit.capture.unused import unused_bytes
from paramgraph_kit.capture.words import Side, notable_words
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind
from tests.unit.test_capture_flash import GARBAGE, packed

HEADS, BATCHES, SPLITS = 4, 3, 2
NAME = "_Z39fmha_cutlass{}_f32_aligned_64x64_rf_sm80N22PyTorchMemEffAttention15AttentionKernelIfEE6ParamsE"
GRIDS = {"F": (5, HEADS, BATCHES), "B": (SPLITS, HEADS, BATCHES)}


def parameters(which: str, garbage: int = GARBAGE) -> bytes:
    """A struct by the book, field by field and aligned; ``garbage`` where there is no field."""
    state = [0, 0, 0, False]
    if which == "F":
        fields = "7QI3Qif5iB5i3iq3qq2i?Qf3Q?2Q"
        values = [
            *[0] * 8,
            *[0] * 3,
            0,
            0.125,
            64,
            64,
            300,
            300,
            300,
            1,
            *[0] * 8,
            *[0] * 5,
            BATCHES,
            HEADS,
            False,
            0,
            0.0,
        ]
        return packed(fields, [*values, *state, 0, 0], garbage)
    fields = "17Qif5iB6qB3Q?Qfq3iqqqqqqqqqqihqqqqqqqqqq"
    values = [*[0] * 17, 0, 0.125, 64, 64, 300, 300, HEADS, 1, *[0] * 6, 1, *state, 0, 0.0, 0, *[0] * 3, *[0] * 10]
    return packed(fields, [*values, BATCHES, SPLITS, *[0] * 10], garbage)


def node(which: str, data: bytes, **others: object) -> RawNode:
    known: dict[str, object] = {"layout": ((0, len(data)),), "grid": GRIDS[which]}
    return RawNode(NodeKind.KERNEL, NAME.format(which), data, (), **known | others)  # type: ignore[arg-type]


@pytest.mark.parametrize(("which", "size"), [("F", 272), ("B", 464)])
def test_between_the_fields_is_nothing_that_it_reads(which: str, size: int) -> None:
    # GIVEN a struct with garbage wherever no field is, behind a number of its own
    data = parameters(which)
    assert len(data) == size
    # WHEN asked THEN exactly that is named
    gaps = {at for at in range(size) if data[at] == GARBAGE}
    assert unused_bytes(node(which, data), lambda _: False) == gaps
    moved = node(which, bytes(8) + data, layout=((8, size), (0, 8)))
    assert unused_bytes(moved, lambda _: False) == {8 + at for at in gaps}


@pytest.mark.parametrize("which", ["F", "B"])
def test_two_captures_that_differ_there_only_are_one_kernel(which: str) -> None:
    # GIVEN two captures with other leftovers on the stack: bytes 216 to 224 differed on an H200
    sides = [Side([node(which, parameters(which, byte))], [], lambda _: False) for byte in (0, 0x7F)]
    # WHEN compared THEN they are the same
    notable_words(sides[0], sides[1])
    # AND where a number differs, here the probability of dropout or the distance from matrix to matrix, they are not
    other = bytearray(parameters(which, 0))
    struct.pack_into("<f", other, {"F": 216, "B": 264}[which], 0.5)
    with pytest.raises(RefusedError, match=r"bytes (216\.\.224|264\.\.272)"):
        notable_words(sides[0], Side([node(which, bytes(other))], [], lambda _: False))


@pytest.mark.parametrize(("which", "at"), [("F", 192), ("F", 196), ("B", 160), ("B", 376), ("B", 380)])
def test_a_grid_that_is_not_made_of_its_numbers_is_another_kernel_s(which: str, at: int) -> None:
    data = bytearray(parameters(which))
    data[at] += 1
    assert unused_bytes(node(which, bytes(data)), lambda _: False) == set()


@pytest.mark.parametrize(
    ("which", "at", "most"), [("F", 116, 2), ("F", 200, 1), ("F", 248, 1), ("B", 164, 2), ("B", 216, 3), ("B", 248, 1)]
)
def test_a_flag_is_as_large_as_it_can_be(which: str, at: int, most: int) -> None:
    found = []
    for value in (most, most + 1):
        data = bytearray(parameters(which))
        data[at] = value
        found.append(bool(unused_bytes(node(which, bytes(data)), lambda _: False)))
    assert found == [True, False]


def test_another_size_or_library_is_another_struct() -> None:
    data = parameters("F")
    assert unused_bytes(node("F", data + bytes(8)), lambda _: False) == set()
    assert unused_bytes(node("B", data), lambda _: False) == set()
    other = RawNode(NodeKind.KERNEL, "fmha_cutlassF", data, (), layout=((0, len(data)),), grid=GRIDS["F"])
    assert unused_bytes(other, lambda _: False) == set()
