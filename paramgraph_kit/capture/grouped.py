"""Which bytes nobody reads of the parameters of products in groups, a mixture's experts: ATen's two kernels.

One writes a table of addresses, strides and sizes, from lists of three numbers of which a matrix fills two. The other
is CUTLASS's, one struct by value that reads through the table: a gap stands behind each descriptor for the copies in
blocks, each number of four bytes and each part. It is taken for what it is by its size and by fields that say the same.
(Layouts: torch 2.11, CUTLASS 4, CUDA 13: native/cuda/GroupMM.cu, GroupMMCommon.cuh; all bytes seen on an H200.)
"""

from __future__ import annotations

import re
import struct

from paramgraph_kit.driver.api import RawNode

_TABLE = "_ZN2at4cuda6detail25prepare_grouped_gemm_dataI"
_SIZES = (*[8] * 15, *[4] * 3, *[24] * 5, *[8] * 2, *[1] * 2)  # of its parameters
_M, _LISTS, _THIRD = 15, 18, 16  # the first of three numbers; the first of five lists; where a list's last number is
# Strides of the first factor, the second and the result, sizes of the factors: those of matrices where the number of
# rows, of columns or of what is summed over is another in each group (-1).
_OF_MATRICES = ((0, 2, 3), (1, 2, 4), (0, 1, 3, 4))

_PRODUCT = re.compile(r"_ZN7cutlass13device_kernelIN2at4cuda6detail\d+enable_3x_kernel_for_sm9x.*Sm90PtrArrayTmaWarp")
_BYTES = 1792
_EQUAL = ((16, 1688), (128, 656), (384, 672), (1152, 1432), (1408, 1728))  # places of the same address
_GROUPED, _GROUPS, _AGAIN, _FACTOR, _ONE = 4, 8, 1680, 808, 1.0
_GAPS = (
    *[(4, 8), (12, 16), (32, 128)],  # kind, number of groups, and before the main part, aligned to 128 bytes
    *[(256, 384), (512, 640), (644, 648), (688, 768)],  # descriptors of both factors, bytes of one copy, the part's end
    *[(772, 776), (800, 808), (812, 816), (840, 896)],  # two factors, and functions without members
    *[(1024, 1152), (1280, 1408), (1452, 1536)],  # descriptors of what is added and of the result, bytes of one copy
    *[(1572, 1576), (1588, 1592), (1604, 1608), (1628, 1632), (1652, 1656)],  # the device, and four dividers
    *[(1665, 1668), (1676, 1680), (1684, 1688), (1736, 1792)],  # a flag, an order, the number of groups; the end
)


def unused_of_grouped(node: RawNode) -> set[int]:
    """Offsets of the bytes; empty for another kernel, or one whose parameters are not those that are known."""
    if node.name.startswith(_TABLE):
        return _of_table(node)
    if len(node.layout) != 1 or node.layout[0][1] != _BYTES or not _PRODUCT.match(node.name):
        return set()
    start = node.layout[0][0]
    data = node.parameters[start : start + _BYTES]

    def number(at: int, kind: str = "i") -> float:
        return float(struct.unpack_from(f"<{kind}", data, at)[0])

    same = all(data[a : a + 8] == data[b : b + 8] != bytes(8) for a, b in _EQUAL)
    if not same or (number(0), number(_FACTOR, "f")) != (_GROUPED, _ONE) or number(_GROUPS) != number(_AGAIN):
        return set()
    return {start + at for first, end in _GAPS for at in range(first, end)}


def _of_table(node: RawNode) -> set[int]:
    if tuple(size for _, size in node.layout) != _SIZES:
        return set()
    varying = [k for k in range(3) if struct.unpack_from("<i", node.parameters, node.layout[_M + k][0]) == (-1,)]
    if len(varying) != 1:
        return set()
    lists = (node.layout[_LISTS + k][0] + _THIRD for k in _OF_MATRICES[varying[0]])
    return {at for start in lists for at in range(start, start + 8)}
