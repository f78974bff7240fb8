"""``torch.autocast`` on the device: CUDA's lists of what runs in the lower precision and what in float32.

Weights are cast at every use: there is no cache of casts to go stale, as there is on CUDA.
"""

from __future__ import annotations

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
_guard = torch_name("_ExcludeDispatchKeyGuard")
_KEYS = torch_name("DispatchKeySet")(torch_name("DispatchKey").AutocastPrivateUse1)


def _casting(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _guard(_KEYS):
            target = dtype()
            flat, spec = flatten(args, kwargs)
            for i, value in enumerate(flat):
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                    flat[i] = value.to(target)
            cast, options = unflatten(flat, spec)
            return op(*cast, **options)

    return call


def install_autocast(library: Any) -> Any:
    """Register the casts in ``library``; returns the fallback's own library, to be kept alive."""
    lists = ((LOWER, lambda: torch.get_autocast_dtype(DEVICE_NAME)), (FLOAT32, lambda: torch.float32))
    for names, dtype in lists:
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _casting(op, dtype), "AutocastPrivateUse1")
    everything: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # torch leaves it untyped
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return everything
