"""Gaps of the two kernels of a product in groups, as an H200 has shown them."""

from __future__ import annotations

import struct

import pytest

from paramgraph_kit.capture.unused import unused_bytes
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.trace.model import NodeKind
from tests.unit.test_capture_unused import PHANTOM, is_pointer, node

TABLE = "_ZN2at4cuda6detail25prepare_grouped_gemm_dataIN7cutlass10bfloat16_tES4_S4_fN4cute5tupleIJiiiEEENS6_IJl"
PRODUCT = (
    "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS_4gemm6kernel13GemmUniversalINS5_17Group"
    "ProblemShapeIN4cute5tupleIJiiiEEEEENS5_10collective13CollectiveMmaINS5_39MainloopSm90ArrayTmaGmmaWarpSpecialized"
    "ILi4ENS_8epilogue10collective18CollectiveEpilogueINS1N_30Sm90PtrArrayTmaWarpSpecializedILi4EEEEEvNT_6ParamsE"
)
GARBAGE = b"\xa5"
START = 112  # parameters are aligned to 128 bytes where the device reads them


def product(
    *, sum_of: float = 1.0, kind: int = 4, groups: int = 3, result: int = PHANTOM + 64, table: int = PHANTOM + 4096
) -> bytes:
    """The struct, garbage wherever nothing lies."""
    data = bytearray(GARBAGE * 1792)

    def put(at: int, layout: str, *values: float) -> None:
        data[at : at + struct.calcsize(f"<{layout}")] = struct.pack(f"<{layout}", *values)

    first, second, workspace = (PHANTOM + 4096 * k for k in range(2, 5))
    put(0, "i", kind)
    put(8, "i", groups)
    put(16, "2Q", table, 0)
    for at, address in ((128, first), (384, second), (896, 0), (1152, PHANTOM + 64)):
        put(at, "16Q", address, *[0x46090] * 15)
    put(640, "i", 0xC000)
    put(648, "5Q", workspace + 512, first, table, second, table)
    for at, factor in ((768, 0.0), (808, sum_of)):
        put(at, "f", factor)
        put(at + 8, "3Q", 0, 0, 0)
    put(1408, "5Qi", workspace, 0, table, result, table, 0x1000)
    put(1536, "9i", 0, 132, 0, *[1] * 6)
    for at in (1576, 1592):
        put(at, "Qi", 2, 1)
    for at in (1608, 1632):
        put(at, "QQi", 64, 0, 6)
    put(1656, "Q?", 132, True)
    put(1668, "2i", 0, 1)
    put(1680, "i", 3)
    put(1688, "2Q", table, 0)
    put(1704, "6i", 64, 128, 128, 2, 1, 1)
    put(1728, "Q", workspace)
    return bytes(data)


def kernel(data: bytes, name: str = PRODUCT) -> RawNode:
    return RawNode(NodeKind.KERNEL, name, bytes(START) + data, (), layout=((START, len(data)),))


def test_a_product_in_groups_has_gaps_where_the_struct_has_nothing() -> None:
    # GIVEN the struct with garbage in its gaps WHEN asked THEN exactly these are named
    data = product()
    found = {at - START for at in unused_bytes(kernel(data), is_pointer) if at >= START}
    assert found == {at for at, byte in enumerate(data) if byte == GARBAGE[0]}


@pytest.mark.parametrize(
    "other",
    [
        kernel(product(sum_of=2.0)),
        kernel(product(kind=1)),
        kernel(product(groups=4)),
        kernel(product(result=PHANTOM + 128)),
        kernel(product(table=0)),
        kernel(product() + bytes(128)),
        kernel(product(), PRODUCT.replace("sm9x", "sm10")),
    ],
)
def test_nothing_is_named_where_the_struct_is_not_the_known_one(other: RawNode) -> None:
    # GIVEN fields that do not say the same, another size or another kernel WHEN asked THEN no byte of it is named
    assert not {at for at in unused_bytes(other, is_pointer) if at >= START}


@pytest.mark.parametrize(
    ("numbers", "matrices"),
    [
        ((-1, 128, 64), (0, 2, 3)),  # rows of the first factor in groups
        ((64, -1, 64), (1, 2, 4)),  # columns of the second
        ((64, 128, -1), (0, 1, 3, 4)),  # what is summed over
        ((64, 128, 64), ()),
        ((-1, -1, 64), ()),
    ],
)
def test_of_the_lists_of_three_those_of_matrices_have_two(
    numbers: tuple[int, int, int], matrices: tuple[int, ...]
) -> None:
    # GIVEN what writes the table, garbage in the last number of each list
    addresses = [struct.pack("<Q", PHANTOM + 64 * k) for k in range(15)]
    lists = [struct.pack("<2q", 64, 1) + GARBAGE * 8 for _ in range(5)]
    rest = [struct.pack("<i", n) for n in numbers]
    given = [*addresses, *rest, *lists, bytes(8), bytes(8), b"\x01", b"\x01"]
    table = node(TABLE, *given)
    outside = {at for at in range(len(table.parameters)) if not any(a <= at < a + n for a, n in table.layout)}
    # WHEN asked THEN those of matrices are named
    starts = [table.layout[18 + k][0] + 16 for k in matrices]
    assert unused_bytes(table, is_pointer) - outside == {at for start in starts for at in range(start, start + 8)}
    # AND none of a kernel with other parameters
    other = node(TABLE, *given, bytes(8))
    assert not unused_bytes(other, is_pointer) & {at for a, n in other.layout for at in range(a, a + n)}
