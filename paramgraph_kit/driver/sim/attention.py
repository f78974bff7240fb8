"""Attention: which kernel an H200 takes for it, and what that needs or refuses; it is computed as products here."""

from __future__ import annotations

from typing import Any

import torch

from .autograd import all_behind
from .libraries import PART_OF, as_one, use

ATTENTION = "scaled_dot_product_attention"
NO_KERNEL = "No available kernel. Aborting execution."
NONE_ENABLED = (
    "No viable backend for scaled_dot_product_attention was found. "
    "This is likely due to turning off both the math kernel and the fused kernels."
)
NOT_THERE = (
    "Expected all tensors to be on the same device, but got attn_bias is on {one}, different from other tensors on "
    "{others} (when checking argument in method wrapper_CUDA___efficient_attention_forward)"
)
_HALVES = (torch.float16, torch.bfloat16)
_MOST = 256  # numbers of a head that flash attention takes
_MOST_OF_CUDNN = 256  # on a Hopper, with cuDNN 9.5.1 and later
_DIMS = 4
_ALIGNED = 16  # bytes that a head has to be a multiple of

CUDNN, FLASH, EFFICIENT, MATH = "cuDNN", "flash", "efficient", "math"


def chosen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> str | None:
    """The kernel that torch 2.11 takes on an H200, or None where each that may be taken refuses."""
    enabled: Any = torch.backends.cuda
    operands = (query, key, value)
    dense = all(each.dim() == _DIMS and each.stride(-1) == 1 and each.numel() for each in operands)
    same_heads = query.size(-1) == key.size(-1) == value.size(-1)
    half = dense and query.dtype in _HALVES
    needs = mask is not None and mask.requires_grad
    aligned = query.size(-1) * query.dtype.itemsize % _ALIGNED == 0 and value.size(-1) == query.size(-1)
    may = {
        CUDNN: enabled.cudnn_sdp_enabled() and half and aligned and query.size(-1) <= _MOST_OF_CUDNN and not needs,
        FLASH: enabled.flash_sdp_enabled()
        and (half and same_heads and mask is None and query.size(-1) <= _MOST)
        and not (causal and query.size(-2) != key.size(-2)),
        EFFICIENT: enabled.mem_efficient_sdp_enabled()
        and (dense and query.dtype in (torch.float32, *_HALVES) and aligned and not needs)
        and query.shape[:-2] == key.shape[:-2],
        MATH: enabled.math_sdp_enabled(),
    }
    return next((name for name, able in may.items() if able), None)


def _any_enabled() -> bool:
    enabled: Any = torch.backends.cuda
    names = ("cudnn_sdp", "flash_sdp", "mem_efficient_sdp", "math_sdp")
    return any(getattr(enabled, f"{name}_enabled")() for name in names)


def attention_kernel(op: Any) -> Any:
    """``aten::scaled_dot_product_attention``."""

    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        if type(query) not in (torch.Tensor, torch.nn.Parameter):  # none with memory: it is traced
            return op.decompose(*given, **options)
        alike = query.dtype == key.dtype == value.dtype and query.dim() == key.dim() == value.dim()
        if not alike or min(query.dim(), key.dim(), value.dim()) < 2:
            return op.decompose(*given, **options)  # which says what is wrong
        kernel = chosen(query, key, value, attn_mask, is_causal)
        if kernel is None:
            raise RuntimeError(NO_KERNEL if _any_enabled() else NONE_ENABLED)
        if kernel == MATH:
            return op.decompose(*given, **options)
        if kernel == CUDNN:
            use("cuDNN")
        if kernel == EFFICIENT and attn_mask is not None:
            attn_mask.expand(*query.shape[:-1], key.size(-2))
            if attn_mask.device != query.device:
                raise RuntimeError(NOT_THERE.format(one=attn_mask.device, others=query.device))
        if attn_mask is not None and is_causal:  # these take both
            given = (query, key, value, _causal(attn_mask, query.size(-2), key.size(-2)), dropout_p, False)
        with as_one():
            found = _laid(op.decompose(*given, **options), query, kernel)
        if found.grad_fn is not None:  # its backward is one kernel, too
            before = [each.grad_fn for each in given if isinstance(each, torch.Tensor) and each.grad_fn is not None]
            for node in all_behind(found.grad_fn, known=before):
                node.metadata[PART_OF] = CUDNN if kernel == CUDNN else ""
        return found

    return call


def _laid(found: torch.Tensor, query: torch.Tensor, kernel: str) -> torch.Tensor:
    """A result as a kernel lays it: heads of a place beside each other, or, by cuDNN, in the order of the queries."""
    order = [0, 2, 1, 3] if kernel != CUDNN else sorted(range(_DIMS), key=query.stride, reverse=True)
    placed = found.permute(order)
    return found if placed.is_contiguous() else placed.contiguous().permute([order.index(n) for n in range(_DIMS)])


def _causal(mask: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    seen = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
    return mask & seen if mask.dtype is torch.bool else mask.masked_fill(~seen, -torch.inf)


def install_attention(library: Any) -> None:
    """Register it above autograd, for what it is made of has gradients of its own, and below."""
    op = getattr(torch.ops.aten, ATTENTION).default
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl(ATTENTION, attention_kernel(op), key)
