"""Which bytes nobody reads of the parameters of kernels that ATen compiles when they are first used.

Special functions, and most functions of complex numbers, are such kernels; their names are plain: ``lgamma_kernel``.
(Layouts: torch 2.11 to 2.13, ATen/native/cuda: CUDAJitLoops.cuh, jit_utils.cpp, reduction_template.cuh.)
"""

from __future__ import annotations

import re

from paramgraph_kit.capture.calculators import SIZES, STRIDES, unused_of_calculator
from paramgraph_kit.capture.elementwise import gap_of_types
from paramgraph_kit.capture.reductions import unused_of_reduction
from paramgraph_kit.driver.api import RawNode

_NAME = re.compile(r"[a-z][a-z0-9_]*_kernel")
_REDUCTION = "reduction_prod_kernel"


def unused_of_compiled_at_runtime(node: RawNode) -> set[int]:
    """Offsets of the bytes; empty for a kernel of another kind, or whose parameters are not those that are known."""
    if not _NAME.fullmatch(node.name):
        return set()
    if node.name == _REDUCTION and len(node.layout) == 1:
        start, size = node.layout[0]
        unused = unused_of_reduction(node.name, node.parameters[start : start + size])
        return {start + at for at in unused or ()}
    # (count, addresses, offsets of what is read, of what is written, how that is read, how it is written, numbers)
    if len(node.layout) < 7 or node.layout[0] != (0, 4) or node.layout[1][1] % 8:
        return set()
    inputs = node.layout[1][1] // 8 - 1
    found: set[int] = set()
    for (start, size), tensors in zip(node.layout[2:4], (inputs, 1), strict=True):
        if size == 1:  # nothing is strided
            found.add(start)
            continue
        behind = unused_of_calculator(node.parameters, start, tensors) if size == SIZES + tensors * STRIDES else None
        if behind is None:
            return set()
        found |= behind
    for (start, size), tensors in zip(node.layout[4:6], (inputs, 1), strict=True):
        found |= {start} if size == 1 else gap_of_types(tensors, start, size)  # of one byte where nothing is cast
    return found
