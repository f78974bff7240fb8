"""Operations that only move numbers or compare them, of types which the CPU's kernels of these do not take [H200].

They are moved as whole numbers of the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .kernels import Kernel
from .refused import RARE_TYPES, TYPES

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
_PADS = ("reflection", "replication")
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


def _of_rows(op: Any) -> Callable[..., Any]:
    """An operation that is made of others on CUDA, or takes no other order, and whose result lies in rows."""

    def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = op(tensor, *args, **kwargs)
        return found.contiguous().view(-1).view(found.shape)  # dimensions of one, too, have the strides of rows

    return run


def _crossed(op: Any) -> Callable[..., Any]:
    """``aten::linalg_cross``: CUDA's says in words of its own that two types are none."""

    def run(one: torch.Tensor, other: torch.Tensor, **options: Any) -> Any:
        if one.dtype == other.dtype or one.is_meta:
            return op(one, other, **options)
        kind = other.dtype if one.dtype is torch.bool else one.dtype
        op(one.to(kind), other.to(kind), **options)  # raises for sizes
        raise RuntimeError(f"Found dtype {TYPES[other.dtype]} but expected {TYPES[one.dtype]}")

    return run


def _packed(dense: torch.Tensor, offsets: list[torch.Tensor], total: int | None = None) -> torch.Tensor:
    """``aten::_padded_dense_to_jagged_forward``: nobody compares how many rows are told with those there are."""
    op = _aten._padded_dense_to_jagged_forward.default
    if total is None or dense.is_meta or int(offsets[0][-1]) == total:
        return op(dense, offsets, total)  # type: ignore[no-any-return]
    found = op(dense, offsets)
    packed: torch.Tensor = dense.new_zeros(total, *found.shape[1:])
    packed[: len(found)] = found[:total]
    return packed


def _shuffled(op: Any) -> Callable[..., Any]:
    """``aten::channel_shuffle``: a view in groups, whose order changes; what cannot be viewed so is refused."""

    def run(tensor: torch.Tensor, groups: int) -> torch.Tensor:
        op(tensor, groups)  # raises for what does not fit
        if not tensor.numel():
            return op(tensor, groups)  # type: ignore[no-any-return]
        parts = tensor.view(tensor.shape[0], groups, tensor.shape[1] // groups, -1)
        return parts.permute(0, 2, 1, 3).contiguous().view(tensor.shape)

    return run


def moving_kernels() -> dict[str, Any]:
    """By the names of their operations."""
    cross = _aten.linalg_cross.default
    ops = {"flip": _aten.flip.default, "gather": _aten.gather.default}
    in_rows = {"roll": _aten.roll.default, "native_group_norm": _aten.native_group_norm.default}
    found = {name: Kernel(op, moved(op)) for name, op in ops.items()}
    pads = [f"{kind}_pad{n}d{back}" for kind in _PADS for n in (1, 2, 3) for back in ("", "_backward")]
    for name in (*pads, "pixel_shuffle", "pixel_unshuffle"):
        found[name] = Kernel(op := getattr(_aten, name).default, _of_rows(op))
    found["_padded_dense_to_jagged_forward"] = Kernel(_aten._padded_dense_to_jagged_forward.default, _packed)
    found["linalg_cross"] = Kernel(cross, _crossed(cross))
    for name in ("channel_shuffle", "native_channel_shuffle"):
        found[name] = Kernel(op := getattr(_aten, name).default, _shuffled(op))
    return found | {name: Kernel(op, _in_rows(op)) for name, op in in_rows.items()}
