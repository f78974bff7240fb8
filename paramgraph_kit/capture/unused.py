"""Which bytes of a kernel's parameters nobody initialises and nobody reads.

ATen passes structs by value whose arrays have room for 25 dimensions or 128 tensors and are filled as far as needed;
what is behind that, and between fields, is whatever lay on the stack. It differs from capture to capture and means
nothing. Only such bytes are named here: a word that differs anywhere else may be an address in disguise or a number
that changes from call to call, in ATen's kernels as in all others. (Layouts: torch 2.11 to 2.13,
ATen/cuda/detail: OffsetCalculator.cuh, IntegerDivider.cuh, TensorInfo.cuh, PhiloxCudaStateRaw.cuh; native/cuda:
Shape.cu.)
"""

from __future__ import annotations

import re
from collections.abc import Callable

from paramgraph_kit.capture.calculators import DIMENSIONS, SIZES, STRIDES, is_calculator
from paramgraph_kit.capture.efficient import unused_of_efficient_attention
from paramgraph_kit.capture.elementwise import unused_of_elementwise
from paramgraph_kit.capture.flash import unused_of_flash_attention
from paramgraph_kit.capture.grouped import unused_of_grouped
from paramgraph_kit.capture.indexing import unused_of_indexing
from paramgraph_kit.capture.jiterator import unused_of_compiled_at_runtime
from paramgraph_kit.capture.multi_tensor import KERNEL, unused_entries
from paramgraph_kit.capture.reductions import unused_of_reduction
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.kernel_names import ATEN as ATEN

_CUFFT, _CUFFT_BYTES, _CUFFT_FLAG = re.compile(r"_Z\d+(?:regular|vector)_fft"), 168, 112
_TENSOR_INFO = {8 + 2 * 4 * DIMENSIONS + 8: 8, 8 + 2 * 8 * DIMENSIONS + 8: 8}  # size: bytes of its pointer


def fields(node: RawNode) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of what a kernel is given: its parameters, and where a struct's gap is known, what is around it.

    cuFFT's struct has a flag of one byte, and beside it what is left of an address: of 13 launches of 11 transforms all
    had 0 there, below heap, stack and older parameters [H100, CUDA 13.0].
    """
    if node.layout == ((0, _CUFFT_BYTES),) and _CUFFT.match(node.name) and node.parameters[_CUFFT_FLAG] <= 1:
        behind = _CUFFT_FLAG + 8
        return ((0, _CUFFT_FLAG), (_CUFFT_FLAG, 1), (behind, _CUFFT_BYTES - behind))
    return node.layout


def unused_bytes(node: RawNode, is_pointer: Callable[[int], bool]) -> set[int]:
    """Offsets of the bytes of ``node.parameters`` that mean nothing; ``is_pointer`` knows the capture's addresses."""
    found: set[int] = set()
    if not node.layout:
        return found
    inside = {at for offset, size in fields(node) for at in range(offset, offset + size)}
    found.update(at for at in range(len(node.parameters)) if at not in inside)
    if not node.name.startswith(ATEN):
        for of_kernels in (
            unused_of_compiled_at_runtime,
            unused_of_flash_attention,
            unused_of_efficient_attention,
            unused_of_indexing,
            unused_of_grouped,
        ):
            found |= of_kernels(node)
        return found
    if "TensorListAddresses" in node.name:  # one pointer for each block; ATen/native/cuda/ForeachReduceOp.cu
        for start, size in node.layout:
            found.update(range(start + 8 * node.grid[0], start + size))
    if KERNEL in node.name:
        return found | unused_entries(node)
    found |= unused_of_elementwise(node) | unused_of_indexing(node)
    for number, (start, size) in enumerate(node.layout):
        data = node.parameters[start : start + size]
        if size == 1 and _is_empty_functor(node.name, data[0]):
            found.add(start)
        if "PhiloxCudaState" in node.name and size in (24, 32):
            flag = size - 8 if size == 32 else 20  # seed, offset, offset within the graph, bool captured
            if data[flag] == 1:
                found.update(range(start + flag + 1, start + size))
        if "TensorInfo" in node.name and size in _TENSOR_INFO:
            found.update(
                range(start + _TENSOR_INFO[size], start + size)
            )  # sizes, strides, dims: shapes, never addresses
        if "CatArrayBatchedCopy" in node.name and number in (1, 2):
            used = 8 * node.grid[1] if number == 1 else 0  # one pointer for each tensor of the batch; then shapes
            found.update(range(start + used, start + size))
        if "ReduceOp" in node.name and (unused := unused_of_reduction(node.name, data)) is not None:
            found.update(start + at for at in unused)
            continue
        for first, last in _offset_calculators(data, is_pointer):
            if "gpu_kernel_impl" in node.name and last % 8 and is_pointer(_word(data, last + 4)):
                last += 4  # nothing is between a calculator and the addresses in these closures
            found.update(range(start + first, start + last))
    return found


def _is_empty_functor(name: str, byte: int) -> bool:
    """Whether a parameter of one byte is a function object without members and not a number of that size."""
    if "UnaryFunctor" in name or "Fill" in name:  # these hold one
        return False
    # A bool that was captured would be 0 or 1.
    return byte > 1 or any(bare in name for bare in ("BinaryFunctor", "direct_copy_kernel", "tensor_kernel_scan_"))


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _offset_calculators(data: bytes, is_pointer: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Where OffsetCalculators lie in a struct: known by dividers whose magic numbers are right.

    All that they hold is made of sizes and strides. How many tensors one is for shows in what follows it.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while at + SIZES + STRIDES <= len(data):
        if not is_calculator(data, at):
            at += 4
            continue
        end = at + SIZES + STRIDES
        if at == 0 and not (len(data) - SIZES) % STRIDES:  # a parameter of its own
            return [(4, len(data))]
        for tensors in range(1, 9):
            behind = at + SIZES + STRIDES * tensors
            field = -(-behind // 8) * 8
            if (field + 8 <= len(data) and is_pointer(_word(data, field))) or (
                behind + SIZES <= len(data) and is_calculator(data, behind)
            ):
                end = behind
                break
        found.append((at + 4, end))
        at = end
    return found
