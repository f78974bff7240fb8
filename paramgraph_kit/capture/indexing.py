"""Which bytes nobody reads of the parameters of ATen's kernels that read or write at computed places.

Each has one closure, or one calculator of offsets for complex transforms, whose layout is known by the kernel's name
and the closure's size. A tensor without dimensions has a calculator of zeros, which nothing else would tell.
Histograms describe three tensors, of which one is empty where blocks count in shared memory.
(Layouts: torch 2.11 to 2.13, ATen/native/cuda: IndexKernel.cu, ScatterGatherKernel.cu, SpectralOps.cu, SummaryOps.cu.)
"""

from __future__ import annotations

import re
import struct

from paramgraph_kit.capture.calculators import DIMENSIONS, SIZES, STRIDES, unused_of_calculator
from paramgraph_kit.driver.api import RawNode

# By name and size of the closure: the tensors of the calculator that it begins with; addresses are behind it.
_TENSORS = {
    ("gpu_index_kernel", 1240): 3,
    ("index_copy_kernel_impl", 648): 3,
    ("_cuda_scatter_gather_internal_kernel", 664): 3,
    ("cuda_take_put_kernel", 944): 2,
}
# Of these, the function behind a count of eight bytes and three lists of 25 has no members: one byte at the end.
_INDEX, _BARE = re.compile(r"gpu_index_kernelIZNS0_\d+index_(?:put_)?kernel_implI"), 8
_FLAG, _SECOND = 528, 532  # of take and put: whether the other tensor is contiguous, and its calculator
_CONJUGATE, _WIDE = "_fft_conjugate_copy_kernel", 8 * DIMENSIONS  # sizes of eight bytes, strides of eight bytes
# Result, partial results and input: an address, sizes, strides, dimensions; then four numbers, and the weights or a
# function without members.
_HISTOGRAM = re.compile(r"_ZN2at4cuda17kernelHistogram1DI.*CUDAHistogramMemoryTypeE[012]E")
_INFO, _NUMBERS = 16 + 2 * _WIDE, 4


def unused_of_indexing(node: RawNode) -> set[int]:
    """Offsets of the bytes; empty for another kernel, or one whose parameters are not those that are known."""
    if _CONJUGATE in node.name:
        return _of_conjugate(node)
    if _HISTOGRAM.match(node.name):
        return _of_histogram(node)
    if len(node.layout) != 2:
        return set()
    start, size = node.layout[1]
    data = node.parameters[start : start + size]
    tensors = next((n for (name, nbytes), n in _TENSORS.items() if nbytes == size and name in node.name), 0)
    found = unused_of_calculator(data, 0, tensors) if tensors else None
    if found is None:
        return set()
    end = SIZES + tensors * STRIDES
    found.update(range(end, -(-end // 8) * 8))
    if _INDEX.search(node.name):
        found.update(range(size - _BARE, size))
    if "take_put" in node.name:
        second = unused_of_calculator(data, _SECOND, 1)
        if second is None or data[_FLAG] > 1:
            return set()
        found |= {*range(_FLAG + 1, _SECOND), *second}
    return {start + at for at in found}


def _of_conjugate(node: RawNode) -> set[int]:
    """(count, two addresses, a calculator of 64 bits, and one of half a spectrum with a mask of dimensions)."""
    found: set[int] = set()
    if [size for _, size in node.layout[3:]] != [8 + 2 * _WIDE, 8 + 2 * _WIDE + 8]:
        return found
    for start, size in node.layout[3:]:
        (dims,) = struct.unpack_from("<i", node.parameters, start)
        if not 0 <= dims <= DIMENSIONS:
            return set()
        sizes, strides, end = start + 8, start + 8 + _WIDE, start + 8 + 2 * _WIDE
        found.update(range(start + 4, sizes), range(sizes + 8 * dims, strides), range(strides + 8 * dims, end))
        found.update(range(min(end + 4, start + size), start + size))
    return found


def _of_histogram(node: RawNode) -> set[int]:
    tensors, behind = node.layout[:3], node.layout[3:]
    if len(behind) != _NUMBERS + 1 or any(size > 8 for _, size in behind[:_NUMBERS]):
        return set()
    operation = behind[_NUMBERS]
    found = {operation[0]} if operation[1] == 1 else set()
    for start, size in (*tensors, *([operation] if not found else [])):
        if size != _INFO:
            return set()
        (dims,) = struct.unpack_from("<i", node.parameters, start + _INFO - 8)
        if not 0 <= dims <= DIMENSIONS:
            return set()
        sizes, strides, end = start + 8, start + 8 + _WIDE, start + _INFO
        found.update(range(sizes + 8 * dims, strides), range(strides + 8 * dims, end - 8), range(end - 4, end))
    return found
