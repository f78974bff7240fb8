"""The dynamic shared memory that a kernel may have, while a node of a graph is set.

cuDNN sets it before each launch to what that launch needs, so that its last launch decides, and CUDA takes neither
parameters nor attributes for a node that has more [H100, batch normalization of several sizes].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

from paramgraph_kit.driver.cuda.calls import call

_LIMIT = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@contextmanager
def allowed(kern: Any, function: Any, nbytes: int, device: int) -> Iterator[bool]:
    """Inside, a kernel may have ``nbytes``, and afterwards what it might before; whether that was in the way.

    Set where libraries set it, on the CUkernel: what ``cuFuncSetAttribute`` sets prevails over that for good, so that
    cuDNN's own next launch would fail. A kernel that has no CUkernel is left alone.
    """
    if not nbytes or not kern or call(cu.cuFuncGetAttribute, _LIMIT, cu.CUfunction(function)) >= nbytes:
        yield False
        return
    place = cu.CUkernel(kern), cu.CUdevice(device)
    before = call(cu.cuKernelGetAttribute, _LIMIT, *place)
    raised = before < nbytes and cu.cuKernelSetAttribute(_LIMIT, nbytes, *place)[0] == cu.CUresult.CUDA_SUCCESS
    try:
        yield raised
    finally:
        # Another thread's launch may have set its own since.
        if raised and call(cu.cuKernelGetAttribute, _LIMIT, *place) == nbytes:
            cu.cuKernelSetAttribute(_LIMIT, before, *place)
