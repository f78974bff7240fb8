"""Operations whose CUDA kernels wait for numbers with some operands, and not with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _zero_points_asked(*args: Any, **_: Any) -> int:
    """Whether they are in range: the smallest and the largest."""
    return 0 if args[2].is_floating_point() or not args[2].numel() else 2


def sorts(elements: Any, tests: Any, **_: Any) -> bool:
    """Whether ``torch.isin`` sorts what it is given; few tests are compared one by one."""
    if not (isinstance(elements, torch.Tensor) and isinstance(tests, torch.Tensor)):
        return False
    return tests.numel() >= 10 * elements.numel() ** 0.145 and elements.numel() > 0


def _sorts(*args: Any, assume_unique: bool = False, **rest: Any) -> int:
    """For the numbers of those that differ, which are the caller's word where he says that all do."""
    return 2 if sorts(*args, **rest) and not assume_unique else 0


def _given_order(*_: Any, sorter: torch.Tensor | None = None, **__: Any) -> int:
    return int(sorter is not None and sorter.numel() > 0)


def _unsorted(*args: Any, **_: Any) -> int:
    """Whether there are sparse tensors with more than one number whose places are to be sorted first."""
    sparse = [each for each in args if isinstance(each, torch.Tensor) and each.layout is torch.sparse_coo]
    return int(any(not each.is_coalesced() and each._nnz() > 1 for each in sparse))


def _made(tensor: torch.Tensor, *_: Any, **__: Any) -> int:
    """Whether places are looked for, or sorted, to make a sparse tensor of this one."""
    return int(tensor.layout is torch.strided or _unsorted(tensor) > 0)


def _sparse(*args: Any, **_: Any) -> int:
    return int(any(isinstance(each, torch.Tensor) and each.layout is torch.sparse_coo for each in args))


def _summed(tensor: torch.Tensor, dim: Any = (), *_: Any, **__: Any) -> int:
    """Whether sums of rows, of which places fall together, are sparse themselves."""
    return int(0 < len(dim) < tensor.sparse_dim() and tensor._nnz() > 1)


# Operations that sort the places of what is sparse, and those that count them in any case.
COALESCING = """_coalesce abs addmm addmm_ asin asinh atan atanh bmm ceil erf erfinv expm1 floor hspmm log1p mm mv norm
pow relu round sgn sign sin sinh _sparse_addmm sqrt tan tanh trunc""".split()  # noqa: SIM905 - shorter so
COUNTING = ("_sparse_softmax", "_sparse_log_softmax", "_sparse_sparse_matmul", "index_select", "select")

# How often they wait, of their operands.
ASKS: dict[str, Callable[..., int]] = {
    "searchsorted": _given_order,
    "isin": _sorts,
    "fake_quantize_per_channel_affine_cachemask": _zero_points_asked,
    "_fake_quantize_learnable_per_channel_affine": _zero_points_asked,
    "_fake_quantize_learnable_per_tensor_affine": lambda *_, **__: 2,
    **dict.fromkeys(COALESCING, _unsorted),
    **dict.fromkeys(COUNTING, _sparse),
    "_sparse_sum": _summed,
    **dict.fromkeys(("_to_sparse", "_to_sparse_csr"), _made),
}
