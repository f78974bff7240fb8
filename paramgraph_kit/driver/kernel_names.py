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


_SPLIT_K, _ITS_SCALARS = "_ZN8cublasLt19splitKreduce_kernel", (5, 6)


def scalars_of_host(name: str) -> tuple[int, ...]:
    """Which of a kernel's parameters, by number, are the addresses of numbers that cuBLAS took from the host.

    The kernel has the numbers themselves in its first parameter, and reads through these only where they lie on the
    device: cuDNN's convolutions and linear layers hand over addresses of their own heap [H200, CUDA 13.0].

    >>> scalars_of_host("_ZN8cublasLt19splitKreduce_kernelILi32E"), scalars_of_host("nvjet_hsh_128x64")
    ((5, 6), ())
    """
    return _ITS_SCALARS if name.startswith(_SPLIT_K) else ()


_CHECKED = (*_PLAIN, "cudnn_", "nvjet_")  # and cuDNN's and cuBLAS's, which torch calls with tensors that it has checked


def takes_device_memory_only(name: str) -> bool:
    """Whether a kernel is only ever given memory that its caller has found to be the device's.

    Host addresses among its parameters are bytes left over, also where kernels could read them.

    >>> takes_device_memory_only("cudnn_generated_fort_native_sdpa"), takes_device_memory_only("my_lookup")
    (True, False)
    """
    return name.startswith(_CHECKED)
