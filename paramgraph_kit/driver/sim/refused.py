"""What one of CPU and CUDA computes and the other refuses: types, solvers, and algorithms of no fixed order."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from .machine import DEVICE_NAME
from .type_names import saying
from .wider import say_as_cuda

TYPES = {  # and their names in errors
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
}
_OLD = ("Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_HALVES = (torch.float16, torch.bfloat16)

# Products are of floating-point and complex numbers, and these are their kernels' names.
PRODUCTS = {
    **dict.fromkeys(("mm", "addmm", "addmm_", "addbmm", "addbmm_"), "addmm_cuda"),
    **dict.fromkeys(("bmm", "baddbmm", "baddbmm_"), "baddbmm_cuda"),
    **dict.fromkeys(("addmv", "addmv_"), "addmv_impl_cuda"),
    **dict.fromkeys(("dot", "vdot"), "dot"),
}
# Kernels of cuSOLVER's whose halves no check of torch's own refuses first.
SOLVERS = {"linalg_cholesky_ex": "cholesky_cusolver", "cholesky": "cholesky_cusolver"}
SOLVERS["_linalg_svd"] = "svd_cuda_gesvdjBatched"
SOLVERS |= dict.fromkeys(("_linalg_det", "_linalg_slogdet"), "lu_factor_cusolver")

# Kernels of CUDA's that take floating-point numbers alone, where the CPU's take whole ones, too;
FLOATS_ONLY = {
    "max_pool2d_with_indices": "max_pool2d_with_indices_out_cuda_frame",
    "max_pool3d_with_indices": "max_pool3d_with_indices_out_frame",
    "avg_pool2d": "avg_pool2d_out_cuda_frame",
    "avg_pool3d": "avg_pool3d_out_cuda",
    "upsample_bilinear2d": "upsample_bilinear2d_out_frame",
    "upsample_bicubic2d": "upsample_bicubic2d_out_frame",
}
# and those that take no halves, where the CPU's do.
NO_HALVES = {"histc": "histc", "igamma": "igamma_cuda", "igammac": "igammac_cuda", "angle": "angle_cuda"}

# Those that take fewer of the unsigned types, or of floating point in 8 bits, than the CPU's, and their names [H200].
_UNSIGNED, _TINY = (torch.uint16, torch.uint32, torch.uint64), (torch.float8_e4m3fn, torch.float8_e5m2)
RARE_TYPES = (*_UNSIGNED, torch.complex32, *_TINY)
_RARE = {
    "any": ("or_cuda", RARE_TYPES),
    "all": ("and_cuda", RARE_TYPES),
    "addcmul": ("addcmul_cuda", (torch.complex32,)),
    "roll": ("roll_cuda", (*_UNSIGNED, *_TINY)),
    "index": ("index_cuda", _UNSIGNED),
    "var": ("std_cuda", _TINY),
    "std": ("std_cuda", _TINY),
    "mul": ("mul_cuda", (*_UNSIGNED, *_TINY)),
    "div": ("div_true_cuda", _TINY),
    "abs": ("abs_cuda", _TINY),
    "where": ("where_cuda", _UNSIGNED),
    "bitwise_and": ("bitwise_and_cuda", _UNSIGNED),
    "bitwise_or": ("bitwise_or_cuda", _UNSIGNED),
    "bitwise_xor": ("bitwise_xor_cuda", _UNSIGNED),
    "sort": ("sortKeyValueInplace", (*_UNSIGNED, *_TINY)),
}

# Norms whose weight and bias are of the type of what they scale, where the CPU's may be wider: their places behind it.
SCALES = {"native_layer_norm": slice(1, 3), "native_group_norm": slice(0, 2)}
BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")

NOT_DETERMINISTIC = (
    "{what} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You "
    "can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's "
    "acceptable for your application. You can also file an issue at https://github.com/pytorch/pytorch/issues to help "
    "us prioritize adding deterministic support for this operation."
)
# Those that are not, and as what torch names them.
UNORDERED = {
    **dict.fromkeys(
        ("median.dim", "median.dim_values", "nanmedian.dim", "nanmedian.dim_values"), "median CUDA with indices output"
    ),
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "_ctc_loss_backward.Tensor": "ctc_loss_backward_gpu",
    "nll_loss2d_backward": "nll_loss2d_backward_out_cuda_template",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "max_unpool2d": "max_unpooling2d_forward_out",
    "max_unpool3d": "max_unpooling3d_forward_out",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "max_pool3d_with_indices_backward": "max_pool3d_with_indices_backward_cuda",
    **dict.fromkeys(("index_reduce", "index_reduce_", "index_reduce.out"), "index_reduce_cuda"),
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "_upsample_bilinear2d_aa_backward": "upsample_bilinear2d_aa_backward_out_cuda",
    "_upsample_bicubic2d_aa_backward": "upsample_bicubic2d_aa_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
}
# Or with some of their operands only.
_REDUCTION = 3  # its place among those of nll_loss2d_forward
MATRIX = 2  # dimensions
_MODE, _LARGEST = 8, 2  # the same of _embedding_bag_backward, and the one that is not
UNORDERED_IF: dict[str, tuple[str, Callable[..., bool]]] = {
    "histc": ("_histc_cuda with floating point input", lambda tensor, *_, **__: bool(tensor.is_floating_point())),
    "bincount": ("_bincount_cuda", lambda _, weights=None, *__: weights is not None),
    **dict.fromkeys(
        ("scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out"),
        ("scatter_reduce_cuda_prod_", lambda tensor, dim, index, source, reduce, **_: reduce == "prod"),
    ),
    **dict.fromkeys(
        ("scatter.reduce", "scatter_.reduce", "scatter.reduce_out"),
        ("scatter_reduce_cuda_kernel", lambda *_, reduce, **__: reduce == "multiply"),
    ),
    "put_": ("put_", lambda tensor, index, source, accumulate=False: accumulate),
    "_embedding_bag_backward": ("embedding_bag_backward_cuda_max", lambda *given: given[_MODE] == _LARGEST),
    "nll_loss2d_forward": ("nll_loss2d_forward_out_cuda_template", lambda *given: bool(given[_REDUCTION])),
}


def check_product(name: str, operands: Sequence[Any]) -> None:
    """Raise NotImplementedError for a product of integers, RuntimeError for one of vectors of two types."""
    if name in ("dot", "vdot") and len({each.dtype for each in operands[:2]}) > 1:
        kinds = " and ".join(TYPES[each.dtype] for each in operands[:2])
        raise RuntimeError(f"{name} : expected both vectors to have same dtype, but found {kinds}")
    unlike = {"mm": 1, "addmm": 2, "addmm_": 2}.get(name)  # of which two types are looked at first
    if unlike is not None and operands[0].dtype != operands[unlike].dtype:
        return
    matrix = next((each for each in operands[:2] if isinstance(each, torch.Tensor)), None)
    if matrix is None or not (_is_whole(matrix.dtype) or matrix.dtype in RARE_TYPES):
        return
    if name == "addmm":  # its sizes are looked at first
        saying(operands[0].expand)(operands[1].size(0), operands[2].size(1))
    raise NotImplementedError(f"\"{PRODUCTS[name]}\" not implemented for '{TYPES[matrix.dtype]}'")


def install_int_mm() -> None:
    """A traced product of int8 into int32 (``out_dtype``) is ``_int_mm`` here, too: any other way of it is refused."""
    known = torch_name("is_int_mm")

    def is_int_mm(op: Any, output_dtype: torch.dtype, args: Sequence[Any]) -> bool:
        if op is not torch.ops.aten.mm.default or output_dtype != torch.int32 or len(args) != 2:
            return bool(known(op, output_dtype, args))
        mine = all(each.dtype == torch.int8 and each.device.type == DEVICE_NAME for each in args)
        return mine or bool(known(op, output_dtype, args))

    module: Any = importlib.import_module("torch._higher_order_ops.out_dtype")
    module.is_int_mm = is_int_mm


def check_solver(name: str, operands: Sequence[Any]) -> None:
    """Raise NotImplementedError for a matrix in half precision."""
    if operands[0].dtype in _HALVES:
        raise NotImplementedError(f"\"{SOLVERS[name]}\" not implemented for '{TYPES[operands[0].dtype]}'")


def check_least_squares(driver: str | None) -> None:
    """Raise RuntimeError for a driver that CUDA has not."""
    if driver not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")


def check_types(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, first: Callable[[], None] = lambda: None
) -> None:
    """Raise for a convolution of tensors not all of one type and on one device, after ``first``."""
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and (tensor.dtype, tensor.device) != (other.dtype, other.device):
            first()
            one, two = map(_named, (tensor, other))
            raise RuntimeError(f"Input type ({one}) and {name} type ({two}) should be the same")


def _named(tensor: torch.Tensor) -> str:
    """A type as torch's C++ has it, of which it says the older ones as Python does."""
    kind, where = TYPES[tensor.dtype], "" if tensor.is_cpu else "cuda."
    return f"torch.{where}{kind}Tensor" if kind in _OLD else f"{'CPU' if tensor.is_cpu else 'CUDA'}{kind}Type"


def check_convolved(tensor: torch.Tensor) -> None:
    """Raise for a convolution of whole numbers, or of floating point in 8 bits: cuDNN has some, but no kernels."""
    if not (_is_whole(tensor.dtype) or tensor.dtype in _TINY):
        return
    kind = TYPES[tensor.dtype]
    if not torch.backends.cudnn.enabled:
        raise NotImplementedError(f"\"slow_conv2d_cuda\" not implemented for '{kind}'")
    if tensor.dtype in (torch.int32, torch.int8, torch.uint8):
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    raise RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {kind}")


def check_rows(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> None:
    """Raise RuntimeError for an embedding's weight that is no matrix, or for indices of another type."""
    if weight.dim() == MATRIX and indices.dtype in (torch.int64, torch.int32):
        return
    try:
        torch.ops.aten.embedding(torch.empty((1,) * weight.dim()), torch.empty(0, dtype=indices.dtype))
    except RuntimeError as error:
        if not indices.is_cpu:
            say_as_cuda(error)
        raise


def check_dropped(tensor: torch.Tensor, p: float, train: bool | None) -> None:
    """Raise NotImplementedError for whole numbers of which some are to be dropped."""
    if train is not False and tensor.numel():
        check_numbers("fused_dropout", _is_whole, tensor)


def check_classes(scores: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, *_: Any, **__: Any) -> None:
    """Raise NotImplementedError for classes that are not integers of 64 bits, or bytes."""
    fits = target.dim() <= 1 and (scores.dim() == 1 or scores.shape[:1] == target.shape)  # looked at before the type
    if target.dtype not in (torch.int64, torch.uint8) and scores.dim() in (1, 2) and fits:
        kernel = "reduce_cuda_kernel_1d_index" if scores.dim() == 1 else "reduce_cuda_kernel_2d_index"
        kernel = kernel if reduction or scores.dim() == 1 else "no_reduce_cuda_kernel_index"
        raise NotImplementedError(f"\"nll_loss_forward_{kernel}\" not implemented for '{TYPES[target.dtype]}'")


def check_pixel_classes(scores: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> None:
    """Raise RuntimeError for classes of pixels that are not integers of 64 bits."""
    if target.dtype != torch.int64:
        raise RuntimeError(f"expected scalar type Long but found {TYPES[target.dtype]}")


def check_quantization(_: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, *__: Any, **___: Any) -> None:
    """Raise RuntimeError for a scale that is no float32, or a zero point that is no int32, of fake quantization."""
    for given, wanted in ((scale, torch.float32), (zero_point, torch.int32)):
        if given.dtype != wanted:
            raise RuntimeError(f"expected scalar type {TYPES[wanted]} but found {TYPES[given.dtype]}")


def check_scales(operation: str, tensor: torch.Tensor, scales: Sequence[Any]) -> None:
    """Raise RuntimeError for a norm's weight or bias of another type than what it scales [H200]."""
    layers = operation == "native_layer_norm"
    if layers and _is_whole(tensor.dtype):
        raise NotImplementedError(f"\"LayerNormKernelImpl\" not implemented for '{TYPES[tensor.dtype]}'")
    for scale in scales:
        if scale is not None and scale.dtype != tensor.dtype and not layers and tensor.dtype not in _HALVES:
            raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")
        if scale is not None and scale.dtype != tensor.dtype:
            raise RuntimeError(f"expected scalar type {TYPES[tensor.dtype]} but found {TYPES[scale.dtype]}")


def check_batch_norm(tensor: torch.Tensor, *given: Any, **_: Any) -> None:
    """Raise for rows of whole numbers, or of another type than what they are scaled by, but for halves by float32."""
    if tensor.dim() > MATRIX:
        return
    if _is_whole(tensor.dtype) and any(each is True for each in given):  # in training
        raise NotImplementedError(f"\"batch_norm_stats_cuda\" not implemented for '{TYPES[tensor.dtype]}'")
    for scale in (each for each in given[:4] if isinstance(each, torch.Tensor)):  # and running statistics
        wider = tensor.dtype in _HALVES and scale.dtype is torch.float32
        if scale.dtype != tensor.dtype and not wider:
            raise RuntimeError(f"expected scalar type {TYPES[tensor.dtype]} but found {TYPES[scale.dtype]}")


def check_exponents(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
    """Raise NotImplementedError for a softmax of integers."""
    if not tensor.is_floating_point():
        raise NotImplementedError(f"\"host_softmax\" not implemented for '{TYPES[tensor.dtype]}'")


def check_numbers(kernel: str, refused: Callable[[torch.dtype], bool], tensor: torch.Tensor) -> None:
    """Raise NotImplementedError for numbers of a type that a kernel does not take."""
    if refused(tensor.dtype):
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{TYPES[tensor.dtype]}'")


def check_rare(operation: str, operands: Sequence[Any], rounding: str | None = None) -> None:
    """Raise NotImplementedError for operands whose common type a kernel does not take."""
    kernel, refused = _RARE[operation]
    operands = [each for each in operands[operation == "where" :][:2] if isinstance(each, (torch.Tensor, float, int))]
    rare = any(isinstance(each, torch.Tensor) and each.dtype in refused for each in operands)
    if rare and rounding is None:
        common = torch.result_type(*operands) if len(operands) > 1 and operation != "sort" else operands[0].dtype
        check_numbers(kernel, refused.__contains__, torch.empty(0, dtype=common))


def check_extremes(tensor: torch.Tensor, *, dim: int | None = None, **_: Any) -> None:
    """Raise NotImplementedError for the least and largest of complex numbers, as the kernel for all of them does."""
    if dim is None:
        check_numbers("aminmax_all_cuda", _is_complex, tensor)


def check_middle(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
    """Raise RuntimeError for a median of complex numbers, which CUDA sorts for it."""
    if tensor.is_complex():
        torch.empty(0, dtype=tensor.dtype).sort()


def check_counted(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
    """Raise RuntimeError for a histogram of float16, as CUDA's says it ahead of all others."""
    if tensor.dtype is torch.float16:
        raise RuntimeError("HalfTensor is not supported")


def check_chances(chances: torch.Tensor) -> None:
    """Raise RuntimeError for probabilities that are no floating-point numbers."""
    if not chances.is_floating_point():
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {TYPES[chances.dtype]}")


def _is_complex(dtype: torch.dtype) -> bool:
    return dtype.is_complex


def _is_whole(dtype: torch.dtype) -> bool:
    return dtype in TYPES and not (dtype.is_floating_point or dtype.is_complex)


def check_order(what: str) -> None:
    """Raise RuntimeError, or warn, where ``torch.use_deterministic_algorithms`` asks for it."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    text = NOT_DETERMINISTIC.format(what=what)
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(text)
    warnings.warn(text, UserWarning, stacklevel=3)


def refusing(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that refuses first what CUDA's does."""
    if name == "nll_loss2d_forward":
        run = _first(check_pixel_classes, run)
    if name == "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams":
        run = _first(check_quantization, run)
    operation = name.partition(".")[0]  # those that write into given tensors refuse the same
    if (rare := operation.rstrip("_")) in _RARE:
        run = _first(lambda *given, rounding_mode=None, **_: check_rare(rare, given, rounding_mode), run)
    if name in ("median", "nanmedian"):
        run = _first(check_middle, run)
    if name in ("bernoulli", "bernoulli_.Tensor"):  # the last tensor holds them
        run = _first(lambda *given, **_: check_chances([x for x in given if isinstance(x, torch.Tensor)][-1]), run)
    if operation == "aminmax":
        run = _first(check_extremes, run)
    for kernels, refused in ((FLOATS_ONLY, _is_whole), (NO_HALVES, _HALVES.__contains__)):
        if (kernel := kernels.get(operation)) is not None:
            run = _first(lambda tensor, *_, k=kernel, r=refused, **__: check_numbers(k, r, tensor), run)
    if operation == "histc":
        run = _first(check_counted, run)
    if operation in PRODUCTS:
        checks: Callable[..., None] = lambda *args, **_: check_product(operation, args)  # noqa: E731
    elif operation in SOLVERS:
        checks = lambda *args, **_: check_solver(operation, args)  # noqa: E731
    elif operation == "linalg_lstsq":
        checks = lambda *args, driver=None, **_: check_least_squares(driver)  # noqa: E731
    elif operation == "nll_loss_forward":
        checks = check_classes
    elif name == "embedding":
        checks = check_rows
    elif name == "native_dropout":
        checks = check_dropped
    elif operation in SCALES:
        checks = lambda tensor, *given, **_: check_scales(operation, tensor, given[SCALES[operation]])  # noqa: E731
    elif operation in BATCH_NORMS:
        checks = check_batch_norm
    elif operation in ("_softmax", "_log_softmax"):
        checks = check_exponents
    elif name in UNORDERED:
        checks = lambda *_, **__: check_order(UNORDERED[name])  # noqa: E731
    elif name in UNORDERED_IF:
        what, asks = UNORDERED_IF[name]
        checks = lambda *args, **kwargs: check_order(what) if asks(*args, **kwargs) else None  # noqa: E731
    else:
        return run

    return _first(checks, run)


def _first(checks: Callable[..., None], run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        checks(*args, **kwargs)
        return run(*args, **kwargs)

    return call
