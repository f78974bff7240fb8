"""What a kernel's name says of whose it is, and of what it may do with the addresses that it is given."""

from __future__ import annotations

ATEN = "_ZN2at6native"  # how the names of ATen's own kernels begin
CUDNN = "_ZN5cudnn"  # and cuDNN's
_PLAIN = ("triton_", "pgk_", ATEN)  # Inductor's, ours, ATen's
_RANGE = "arange"


def may_write_addresses(name: str) -> bool:
    """Whether a kernel may write addresses to memory, in a table that a later kernel reads through.

    Libraries' kernels may. Of ATen's, ``arange`` does: ``get_device_pointers`` makes such tables with it for cuBLAS's
    and cuSOLVER's batched routines (ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp, torch 2.11 to 2.13).

    >>> may_write_addresses("nvjet_hsh_128x64"), may_write_addresses("triton_poi_fused_add_0")
    (True, False)
    """
    return not name.startswith(_PLAIN) or _RANGE in name


_CHECKED = (*_PLAIN, "cudnn_", "nvjet_")  # and cuDNN's and cuBLAS's, which torch calls with tensors that it has checked


def takes_device_memory_only(name: str) -> bool:
    """Whether a kernel is only ever given memory that its caller has found to be the device's.

    Host addresses among its parameters are bytes left over, also where kernels could read them.

    >>> takes_device_memory_only("cudnn_generated_fort_native_sdpa"), takes_device_memory_only("my_lookup")
    (True, False)
    """
    return name.startswith(_CHECKED)
