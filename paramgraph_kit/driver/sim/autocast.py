"""``torch.autocast`` on the device: CUDA's lists of what runs in the lower precision and what in float32.

As on CUDA, the cast of a weight is kept until the outermost region ends, where ``cache_enabled`` says so: whatever is
captured in between reads the kept cast, and not the weight.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from .kernels import flatten, unflatten
from .machine import DEVICE_NAME

# The lists of torch's autocast_mode.h, but for what cuDNN and fused kernels alone do.
LOWER = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "addr", "matmul", "linear", "prelu", "chain_matmul"),
    *("conv1d", "conv2d", "conv3d", "conv_tbc", "_convolution", "convolution", "scaled_dot_product_attention"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "einsum", "linalg_vecdot"),
    *("linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm"),
    *("native_layer_norm", "group_norm", "cosine_similarity", "frobenius_norm.dim", "nuclear_norm"),
    *("nuclear_norm.dim", "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm", "linalg_matrix_norm"),
    *("linalg_matrix_norm.str_ord", "cumsum", "cumprod", "prod", "prod.dim_int", "sum", "sum.dim_IntList"),
    *("softmax.int", "log_softmax.int", "logsumexp", "renorm", "dist", "cdist", "pdist"),
    *("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "mse_loss", "l1_loss", "smooth_l1_loss"),
    *("huber_loss", "kl_div", "binary_cross_entropy_with_logits", "poisson_nll_loss", "cosine_embedding_loss"),
    *("hinge_embedding_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss"),
    *("triplet_margin_loss", "multi_margin_loss"),
    *(f"{exact}{d}" for exact in ("upsample_nearest", "_upsample_nearest_exact") for d in ("1d", "2d", "3d")),
    *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)
if not torch.__version__.startswith("2.11."):  # which leaves it in the lower type [H200]
    FLOAT32 += ("rms_norm",)
# What takes arguments of the widest type among them.
WIDEST = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "tensordot"),
    *("scatter_add", "vdot"),
)
BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)
_guard = torch_name("_ExcludeDispatchKeyGuard")
_KEYS = torch_name("DispatchKeySet")(torch_name("DispatchKey").AutocastPrivateUse1)


_kept: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}  # by id: a weight, and its cast


def _cast(value: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    keeps = (
        torch.is_autocast_cache_enabled()
        and value.dtype == torch.float32
        and target == _lower()
        and (value.requires_grad and value.is_leaf and not value._is_view())
    )
    if not keeps:
        return value.to(target)
    weight, cast = _kept.get(id(value), (None, value))
    if weight is None or weight() is not value or cast.dtype != target:
        cast = value.to(target)
        _kept[id(value)] = (weakref.ref(value), cast)
    return cast


def as_one_kernel(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what is one kernel of cuDNN's on a GPU, and many operations here: all that it is given is cast before."""
    if not torch.is_autocast_enabled(DEVICE_NAME):
        return function(*args, **kwargs)
    return _casting(function, _lower)(*args, **kwargs)


def _lower() -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE_NAME)


def _all_cast(args: tuple[Any, ...], kwargs: dict[str, Any], target: torch.dtype) -> tuple[Any, Any]:
    """Arguments of which all tensors that autocast takes are of one type."""
    flat, spec = flatten(args, kwargs)
    cast, options = unflatten([_cast(value, target) if _eligible(value) else value for value in flat], spec)
    return cast, options


def _eligible(value: Any) -> bool:
    on_device = isinstance(value, torch.Tensor) and value.device.type == DEVICE_NAME
    return on_device and value.is_floating_point() and value.dtype != torch.float64


def _forget_casts() -> None:
    """Let torch's own call at the end of a region drop the casts that are kept here."""
    clear = torch.clear_autocast_cache

    @functools.wraps(clear)
    def clear_both() -> None:
        _kept.clear()
        clear()

    torch.clear_autocast_cache = clear_both


def _casting(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _guard(_KEYS):
            cast, options = _all_cast(args, kwargs, dtype())
            return op(*cast, **options)

    return call


def _widening(op: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _guard(_KEYS):
            cast, options = _all_cast(args, kwargs, _widest(flatten(args, kwargs)[0]))
            return op(*cast, **options)

    return call


def _widest(values: list[Any]) -> torch.dtype:
    """The type of arguments that go together, as torch finds it: one after the other."""
    found = lower = _lower()
    for value in values:
        if isinstance(value, torch.Tensor) and found == torch.float64:
            raise RuntimeError("promote type is double in at::autocast::prioritize")
        if not _eligible(value):
            continue
        if torch.float32 in (found, value.dtype):
            found = torch.float32
        elif not found == lower == value.dtype:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return found


def _refused(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(BANNED)


def install_autocast(library: Any) -> Any:
    """Register the casts in ``library``; returns the fallback's own library, to be kept alive."""
    _forget_casts()
    lists = ((LOWER, _lower), (FLOAT32, lambda: torch.float32))
    for names, dtype in lists:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _casting(op, dtype), "AutocastPrivateUse1")
    for name in WIDEST:
        library.impl(name, _widening(getattr(torch.ops.aten, name).default), "AutocastPrivateUse1")
    library.impl("binary_cross_entropy", _refused, "AutocastPrivateUse1")
    everything: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # torch leaves it untyped
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return everything
