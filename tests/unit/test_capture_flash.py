"""Flash attention's struct: what its constructor does not fill is no address, and all else counts."""

from __future__ import annotations

import struct

import pytest

from paramgraph_kit.capture.unused import unused_bytes
from paramgraph_kit.capture.words import Side, notable_words
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind

FORWARD = "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_traitsIN7cutlass10bfloat16_tEEEvNS_16Flash_fwd_paramsE"
BACKWARD = FORWARD.replace("flash_fwd_kernel", "flash_bwd_kernel").replace("fwd_params", "bwd_params")
GARBAGE = 0xA5


def forward(*, dropout: float = 0.1, sizes: int = 10, garbage: int = GARBAGE) -> bytes:
    """Flash_fwd_params by the book, field by field and aligned; ``garbage`` where there is no field."""
    scale = 0.125
    (kept,) = struct.unpack("<f", struct.pack("<f", 1 - dropout))
    fields = "3Q" + "9q" + "3i" + "2Q" + "3q" + "3Q" + f"{sizes}i" + "2f" + "7Q" + "6q" + "4Q" + "q" + "i" + "f" + "B"
    fields += "2f" + "2i" + "f" + "2QQ?" + "Q" + "4?" + "i" + "Q" + "q" + "2?"
    values = [*[0] * 12, 64, 8, 8, *[0] * (8 + sizes), scale, scale * 1.4427, *[0] * 18, 0, kept, int(kept * 255)]
    values += [1 / kept, scale / kept, -1, 0, 0.0, 7, 8, 9, True, 0, True, True, True, False, 0, 0, 0, False, False]
    return packed(fields, values, garbage)


def backward(garbage: int = GARBAGE) -> bytes:
    return forward(garbage=garbage) + packed("7Q12qQ?q", [*[0] * 20, True, 0], garbage)


def packed(fields: str, values: list[object], garbage: int) -> bytes:
    data, rest, count = bytearray(), iter(values), ""
    for letter in fields:
        if letter.isdigit():
            count += letter
            continue
        size = struct.calcsize(letter)
        for _ in range(int(count or 1)):
            data += bytes([garbage]) * (-len(data) % size) + struct.pack(f"<{letter}", next(rest))
        count = ""
    assert next(rest, None) is None
    return bytes(data + bytes([garbage]) * (-len(data) % 8))


def node(name: str, data: bytes, *more: bytes) -> RawNode:
    layout = ((0, len(data)), *((len(data) + 4 * n, 4) for n in range(len(more))))
    return RawNode(NodeKind.KERNEL, name, data + b"".join(more), (), layout=layout)


@pytest.mark.parametrize("sizes", [9, 10])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_between_the_fields_of_flash_attention_is_nothing_that_it_reads(dropout: float, sizes: int) -> None:
    # GIVEN its struct, with garbage wherever no field is WHEN asked THEN exactly that is named
    data = forward(dropout=dropout, sizes=sizes)
    assert len(data) == 472
    assert unused_bytes(node(FORWARD, data), lambda _: False) == {at for at in range(472) if data[at] == GARBAGE}


def test_the_backward_s_struct_begins_with_the_forward_s() -> None:
    # GIVEN it, beside a number of its own WHEN asked THEN its gaps are named, and not the number
    data = backward()
    assert len(data) == 648
    found = unused_bytes(node(BACKWARD, data, struct.pack("<i", 4)), lambda _: False)
    assert found == {at for at in range(648) if data[at] == GARBAGE}


@pytest.mark.parametrize("at", [96, 216, 372, 376, 380, 384, 424, 440, 464])
def test_a_struct_whose_numbers_do_not_fit_together_is_another(at: int) -> None:
    # GIVEN one with another number of heads, scale, probability or flag WHEN asked THEN nothing is named
    data = bytearray(forward())
    data[at + 1 if at < 376 else at] ^= 0x42
    assert unused_bytes(node(FORWARD, bytes(data)), lambda _: False) == set()
    # AND nothing of another size, or of another library's kernel
    assert unused_bytes(node(FORWARD, forward() + bytes(8)), lambda _: False) == set()
    assert unused_bytes(node(FORWARD.replace("pytorch_flash", "another_flash"), forward()), lambda _: False) == set()


def test_one_head_of_keys_is_enough_and_none_is_not() -> None:
    # GIVEN eight heads that share one of keys, and a struct that has none, nor heads WHEN asked THEN only one is known
    (at,) = [n for n in range(0, 472, 4) if forward()[n : n + 12] == struct.pack("<3i", 64, 8, 8)]
    found = []
    for numbers in ((8, 1, 8), (0, 0, 8)):
        data = bytearray(forward())
        struct.pack_into("<3i", data, at, *numbers)
        found.append(bool(unused_bytes(node(FORWARD, bytes(data)), lambda _: False)))
    assert found == [True, False]


@pytest.mark.parametrize("at", [424, 440, 441, 442, 443, 464, 465])
def test_a_flag_is_none_or_one(at: int) -> None:
    # GIVEN a two in the place of a flag WHEN asked THEN it is another struct
    data = bytearray(forward())
    assert data[at] in (0, 1)
    data[at] = 2
    assert unused_bytes(node(FORWARD, bytes(data)), lambda _: False) == set()


def test_two_captures_that_differ_behind_its_last_flag_are_one_kernel() -> None:
    # GIVEN two captures with other leftovers on the stack: bytes 464 to 472 differed on an H200
    sides = [Side([node(FORWARD, forward(garbage=byte))], [], lambda _: False) for byte in (0, 0x7F)]
    # WHEN compared THEN they are the same
    notable_words(sides[0], sides[1])
    # AND where a flag differs they are not
    other = bytearray(forward(garbage=0))
    other[465] = 1
    with pytest.raises(RefusedError, match=r"bytes 464\.\.472"):
        notable_words(sides[0], Side([node(FORWARD, bytes(other))], [], lambda _: False))
