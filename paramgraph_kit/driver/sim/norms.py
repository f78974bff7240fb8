"""Batch norms as CUDA's kernels compute them: halves in float32, statistics of another type, and where results lie."""

from __future__ import annotations

from typing import Any

import torch

from .refused import TYPES

_aten: Any = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_ROWS = 2  # dimensions of what has channels alone
_UNLIKE = (
    "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'weight'; but type "
    "torch.cuda.{one}Tensor does not equal torch.cuda.{other}Tensor (while checking arguments for cudnn_batch_norm)"
)


def of_cudnn(tensor: torch.Tensor, weight: Any, bias: Any) -> bool:
    """Whether a norm is cuDNN's: of places beside the batch and the channels, and not of halves alone."""
    if not torch.backends.cudnn.enabled or weight is None or bias is None or tensor.dim() <= _ROWS:
        return False
    if torch.bfloat16 in (tensor.dtype, weight.dtype):
        return False
    return tensor.dtype is not torch.float16 or weight.dtype is torch.float32


def check_scale(tensor: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise RuntimeError for a weight of another type, as cuDNN's norm does."""
    if tensor.dtype in (torch.float32, torch.float64) and tensor.dtype != weight.dtype:
        raise RuntimeError(_UNLIKE.format(one=TYPES[tensor.dtype], other=TYPES[weight.dtype]))


def batch_norm(
    tensor: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """``aten::native_batch_norm``."""
    given = (weight, bias, mean, variance)
    kind = torch.float32 if tensor.dtype in _HALVES else tensor.dtype
    unlike = not training and tensor.dim() > _ROWS and tensor.is_floating_point()
    wide = [_as(kind, each) for each in given] if unlike or _has(tensor.dtype, given) else list(given)
    found: tuple[torch.Tensor, ...] = _aten.native_batch_norm.default(tensor, *wide, training, *rest)
    for known, moved in zip(given[2:], wide[2:], strict=True):
        if training and moved is not known:
            known.copy_(moved)
    if not of_cudnn(tensor, weight, bias) and (like := torch.empty_like(tensor)).stride() != found[0].stride():
        found = (like.copy_(found[0]), *found[1:])
    return found


def batch_norm_backward(
    grad: torch.Tensor, tensor: torch.Tensor, weight: Any, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """``aten::native_batch_norm_backward``."""
    statistics, options = rest[:4], rest[4:]
    if not _has(tensor.dtype, (weight, *statistics)):
        return _aten.native_batch_norm_backward.default(grad, tensor, weight, *rest)  # type: ignore[no-any-return]
    wide = [_as(torch.float32, each) for each in (weight, *statistics)]
    found = _aten.native_batch_norm_backward.default(grad, tensor, *wide, *options)
    kind = tensor.dtype if weight is None else weight.dtype
    return (found[0], *(None if each is None else each.to(kind) for each in found[1:]))


def _has(dtype: torch.dtype, given: tuple[Any, ...]) -> bool:
    """Whether some of what halves are scaled by are halves, too."""
    return dtype in _HALVES and any(each is not None and each.dtype is dtype for each in given)


def _as(dtype: torch.dtype, given: Any) -> Any:
    return given if given is None or given.dtype is dtype else given.to(dtype)
