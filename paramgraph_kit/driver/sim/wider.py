"""Types that CUDA's kernels take and the CPU's do not: such an operation is computed in another type.

What CUDA takes is as torch's operator database has it for every operator, but for unpooling, of which the kernels take
whole numbers; all else is refused, as a GPU refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

_UNKNOWN = re.compile(r"\"([\w.]+)\" not implemented for '(\w+)'")
_WIDER = {
    "Half": (torch.float16, torch.float32),
    "ComplexHalf": (torch.complex32, torch.complex64),
    "BFloat16": (torch.bfloat16, torch.float32),
    "Bool": (torch.bool, torch.uint8),
    "Byte": (torch.uint8, torch.float64),
    "Char": (torch.int8, torch.float64),
    "Short": (torch.int16, torch.float64),
    "Int": (torch.int32, torch.float64),
    "Long": (torch.int64, torch.float64),
}
_HALVES = ("Half", "BFloat16")
_LACKING = "Could not run"  # "'aten::...' with arguments from the 'CPU' backend"
# Of CUDA's kernels, by the CPU's, where it is not only the device in it.
_OTHER_NAMES = {
    "GeluKernelImpl": "GeluCUDAKernelImpl",
    "add_stub": "ufunc_add_CUDA",
    **dict.fromkeys(("lerp_kernel_scalar", "lerp_kernel_tensor"), "lerp_cuda"),
    **dict.fromkeys(("addcmul_cpu_out", "addcmul_cpu"), "addcmul_cuda"),
    "pow": "pow_cuda",
    "cdist": "cdist_cuda",
    "pdist": "pdist_cuda",
    "pdist_backward": "pdist_cuda_backward",
    "fake_quantize_tensor_cachemask_kernel_type_handling": "fake_quantize_tensor_cachemask_kernel_types",
    "_segment_reduce_cpu": "segment_reduce_cuda",
    "_segment_reduce_lengths_cpu_kernel1": "_segment_reduce_cuda_kernel1",
    "_segment_reduce_offsets_cpu_kernel1": "_segment_reduce_cuda_kernel1",
    "masked_fill": "masked_fill_",
    "index_add_": "index_add",
    "div_floor_cpu_reduced_float": "div_floor_cuda",
    "cumsum_out_cpu": "cumsum_cuda",
    "cumprod_out_cpu": "cumprod_cuda",
    "prod_out_cpu": "prod_cuda",
    "topk_cpu": "topk_out_cuda",
    **dict.fromkeys(("tril", "triu"), "triu_tril_cuda_template"),
    "softmax_lastdim_kernel_impl": "host_softmax",
    "max_pool2d": "max_pool2d_with_indices_out_cuda_frame",
    "avg_pool2d": "avg_pool2d_out_cuda_frame",
    "adaptive_avg_pool2d": "adaptive_avg_pool2d_cuda",
    "adaptive_max_pool2d": "adaptive_max_pool2d_cuda",
    "reflection_pad1d": "reflection_pad1d_out",
    "max_all": "max_all_cuda",
    "min_all": "min_all_cuda",
    **dict.fromkeys(("lt_cpu", "le_cpu", "gt_cpu", "ge_cpu"), "compare_cuda"),
    "grid_sampler_2d_cpu_kernel_impl": "grid_sampler_2d_cuda",
    "grid_sampler_2d_backward_cpu_kernel_impl": "grid_sampler_2d_backward_cuda",
    "grid_sampler3d_cpu": "grid_sampler_3d_cuda",
    "log_sigmoid_cpu": "log_sigmoid_forward_cuda",
    "batch_norm": "batch_norm_elementwise_cuda",
    **{f"upsample_nearest{d}d_channels_last": f"upsample_nearest{d}d_out_frame" for d in (2, 3)},
}
# The same of those that several operations share, by operation.
_NAMES_OF = {
    ("mean", "sum_cpu"): "mean_cuda",
    ("scatter_add", "scatter_gather_tensor_cpu"): "cuda_scatter_gather_base_kernel_func",
    ("index_put", "index_put"): "indexing_backward_kernel_stride_1",  # where it adds up
    **{
        (f"upsample_nearest{d}d", "compute_indices_weights_nearest"): f"upsample_nearest{d}d_out_frame"
        for d in (1, 2, 3)
    },
}
_OF_A_MASK = "masked_fill_ only supports boolean masks, but got mask with dtype "
_IN_CPP = {
    "unsigned char": "Byte",
    "signed char": "Char",
    "short int": "Short",
    "int": "Int",
    "long int": "Long",
    "float": "Float",
    "double": "Double",
    "c10::Half": "Half",
    "c10::BFloat16": "BFloat16",
    "c10::complex<float>": "ComplexFloat",
    "c10::complex<double>": "ComplexDouble",
}
_OTHER_WORDS = {
    f"{_OF_A_MASK}{kind}": f"masked_fill only supports boolean masks, but got dtype {name}"
    for kind, name in _IN_CPP.items()
}
_NUMBERED = re.compile(r"Argument #[46]: (?=Padding size should be less)")  # of images, where CUDA's say it without
# Operations that CUDA has kernels for where the CPU has none: of whole numbers, and of yes and no.
_WHOLE = frozenset(("histc", "max_unpool2d", "max_unpool3d"))
_BOOLEAN = frozenset(("abs", "trace", "median", "nanmedian"))
# Of complex halves [H200].
_COMPLEX_HALVES = frozenset(("div", "pow", "sqrt", "lerp", "sum", "prod"))
# Most operations of halves, but for these and for the special functions.
_NO_HALVES = frozenset(
    (
        *("_cdist_backward", "_cdist_forward", "_pdist_backward", "_pdist_forward", "_ctc_loss", "_ctc_loss_backward"),
        *("_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_solve_ex", "linalg_eig", "linalg_lu"),
        *("linalg_householder_product", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lu_factor_ex"),
        *("linalg_lu_solve", "linalg_qr", "linalg_solve_triangular", "triangular_solve", "geqrf", "ormqr"),
        *("_cholesky_solve_helper", "cholesky_inverse", "igamma", "igammac", "histc", "polar", "angle"),
        *("tril_indices", "triu_indices", "gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift"),
    )
)


def is_of_types(error: Exception) -> bool:
    """Whether that is what torch says to a type that an operation does not take, and not that nobody has it here."""
    text = str(error)
    return isinstance(error, NotImplementedError) and not text.startswith(_LACKING) and "simulated device" not in text


def wider(operation: str, error: NotImplementedError) -> tuple[torch.dtype, torch.dtype] | None:
    """The type that the CPU's kernel does not take and one that it does, where CUDA's kernel takes both."""
    found = _UNKNOWN.search(str(error))
    kind = found[2] if found is not None else ""
    if kind in _HALVES:
        takes = operation not in _NO_HALVES and not operation.startswith("special_")
    elif kind == "ComplexHalf":
        takes = operation in _COMPLEX_HALVES
    else:
        takes = operation in (_BOOLEAN if kind == "Bool" else _WHOLE)
    return _WIDER.get(kind) if takes else None


def as_loaded(flat: list[Any], slots: Sequence[int]) -> None:
    """Numbers of the device's beside tensors of halves as CUDA's kernels load them: in that type, before they compute.

    Numbers of the host's stay as exact as they are, here and there [H200]: of float16 1000 * 1e-8 is 1e-5 with such
    a one, and 0 with one that is in the device's memory.
    """
    several = {flat[i].dtype for i in slots if flat[i].dim() and flat[i].is_floating_point()}
    kind = several.pop() if len(several) == 1 else None
    if kind in (torch.float16, torch.bfloat16):
        for i in slots:
            if not flat[i].dim() and flat[i].is_floating_point():
                flat[i] = flat[i].to(kind)


def say_as_cuda(error: RuntimeError, operation: str = "") -> None:
    """Let the refusal name CUDA's kernel, which is called as the CPU's but for the device in most names."""
    found = _UNKNOWN.search(str(error))
    if found is not None:
        name = _OTHER_NAMES.get(found[1], found[1].replace("_vml_cpu", "_cuda").replace("cpu", "cuda"))
        name = _NAMES_OF.get((operation.strip("_").removesuffix("_impl"), found[1]), name)
        error.args = (str(error).replace(found[1], name, 1),)
    elif (other := _OTHER_WORDS.get(str(error).strip())) is not None:
        error.args = (other,)
    elif operation.startswith("reflection_pad2d") and (plain := _NUMBERED.sub("", str(error))) != str(error):
        error.args = (plain,)
    elif "(while checking arguments for" in str(error):
        text = re.sub(r"\btorch\.(\w+Tensor)", r"torch.cuda.\1", str(error))
        error.args = (re.sub(r"\bCPU(\w+Type)\b", r"CUDA\1", text),)


_without = torch_name("_ExcludeDispatchKeyGuard")
_CPU_AUTOCAST = torch_name("DispatchKeySet")(torch_name("DispatchKey").AutocastCPU)
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def uncast() -> AbstractContextManager[None]:
    """Let autocast of the CPU, which is for the user's own tensors there, leave the device's as they are."""
    if not torch.is_autocast_enabled("cpu"):
        return _AS_IT_IS
    found: AbstractContextManager[None] = _without(_CPU_AUTOCAST)
    return found
