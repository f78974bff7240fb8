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

LOWER = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "matmul", "linear", "prelu", "chain_matmul"),
    *("conv1d", "conv2d", "conv3d", "_convolution", "convolution", "scaled_dot_product_attention", "einsum"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
)
FLOAT32 = (
    *(
        "exp",
        "log",
        "log1p",
        "expm1",
        "rsqrt",
        "reciprocal",
        "softplus",
        "cumsum",
        "cumprod",
        "prod",
        "sum",
        "sum.dim_IntList",
    ),
    *(
        "pow.Tensor_Scalar",
        "pow.Tensor_Tensor",
        "softmax.int",
        "log_softmax.int",
        "layer_norm",
        "group_norm",
        "rms_norm",
    ),
    *("norm.Scalar", "norm.ScalarOpt_dim", "cosine_similarity", "cross_entropy_loss", "nll_loss", "nll_loss_nd"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits", "cdist"),
)
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
        and target == torch.get_autocast_dtype(DEVICE_NAME)
        and (value.requires_grad and value.is_leaf and not value._is_view())
    )
    if not keeps:
        return value.to(target)
    weight, cast = _kept.get(id(value), (None, value))
    if weight is None or weight() is not value or cast.dtype != target:
        cast = value.to(target)
        _kept[id(value)] = (weakref.ref(value), cast)
    return cast


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
            target = dtype()
            flat, spec = flatten(args, kwargs)
            for i, value in enumerate(flat):
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                    flat[i] = _cast(value, target)
            cast, options = unflatten(flat, spec)
            return op(*cast, **options)

    return call


def _widening(op: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _guard(_KEYS):
            flat, spec = flatten(args, kwargs)
            found = [v for v in flat if isinstance(v, torch.Tensor) and v.is_floating_point()]
            if len({value.dtype for value in found}) > 1:
                widest = functools.reduce(torch.promote_types, (value.dtype for value in found))
                flat = [value.to(widest) if any(value is each for each in found) else value for value in flat]
            cast, options = unflatten(flat, spec)
            return op(*cast, **options)

    return call


def _refused(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(BANNED)


def install_autocast(library: Any) -> Any:
    """Register the casts in ``library``; returns the fallback's own library, to be kept alive."""
    _forget_casts()
    lists = ((LOWER, lambda: torch.get_autocast_dtype(DEVICE_NAME)), (FLOAT32, lambda: torch.float32))
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
