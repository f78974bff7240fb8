"""Operations that only move numbers or compare them, of types which the CPU's kernels of these do not take [H200].

They are moved as whole numbers of the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .kernels import Kernel
from .refused import RARE_TYPES

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
_aten: Any = torch.ops.aten


def as_whole(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, of one of those types as whole numbers."""
    return tensor.view(_WHOLE[tensor.dtype.itemsize]) if tensor.dtype in RARE_TYPES else tensor


def moved(op: Any) -> Callable[..., Any]:
    """An operation of the CPU's that does so."""

    def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype not in RARE_TYPES:
            return op(tensor, *args, **kwargs)
        whole, others, named = tree_map_only(torch.Tensor, as_whole, (tensor, args, kwargs))
        found = op(whole, *others, **named)
        return tensor if found is whole else found.view(tensor.dtype)

    return run


def is_among(elements: torch.Tensor, among: torch.Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """``aten::isin``: of types that no kernel of the CPU's takes each is compared with each."""
    if elements.dtype not in RARE_TYPES:
        return _aten.isin.Tensor_Tensor(elements, among, assume_unique=assume_unique, invert=invert)
    found = (elements[..., None] == among.flatten()).any(-1)
    return found.logical_not() if invert else found


def _in_rows(op: Any) -> Callable[..., Any]:
    """An operation whose result lies in rows on CUDA, and on the CPU with its channels last where its operand does."""

    def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)
        return op(tensor.contiguous() if tensor.is_contiguous(memory_format=last) else tensor, *args, **kwargs)

    return run


def moving_kernels() -> dict[str, Any]:
    """By the names of their operations."""
    ops = {"flip": _aten.flip.default, "gather": _aten.gather.default}
    in_rows = {"roll": _aten.roll.default, "native_group_norm": _aten.native_group_norm.default}
    found = {name: Kernel(op, moved(op)) for name, op in ops.items()}
    return found | {name: Kernel(op, _in_rows(op)) for name, op in in_rows.items()}
