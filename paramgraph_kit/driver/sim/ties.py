"""In which order CUDA's sorts leave what is equal.

Up to 32 numbers are sorted by a bitonic network, where nobody asks for a stable sort; all others are stable there, too.
The largest of ``topk`` are collected first, those that are larger than the last of them before those equal to it, and
then sorted like that. One number by its rank is found where it is first. What Thrust sorts makes the host wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from .kernels import Doubt, Kernel
from .not_known import not_known
from .stream import current_stream
from .under_way import forbid_in_capture

aten: Any = torch.ops.aten
NETWORK = 32  # numbers that one sorts
ONE_BLOCK = 2048  # numbers that a block of threads sorts
BLOCKS = (128, 1024, ONE_BLOCK)  # for how many there is a kernel each
ROUNDED = 2  # last digits by which sums in another order are apart
ROUNDING = "which number comes first: {name} is given some that differ in their last digits, which rounding makes"
UNSUPPORTED = "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
Found = tuple[torch.Tensor, torch.Tensor]  # values and indices


@cache
def _steps(width: int = NETWORK) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each step of the network: the places that it compares, and whether the larger one goes first."""
    threads = torch.arange(width // 2)
    found = []
    size = 2
    while size <= width:
        turned = (threads & (size // 2) != 0) & (size < width)
        stride = size // 2
        while stride:
            first = 2 * threads - (threads & (stride - 1))
            found.append((first, first + stride, turned))
            stride //= 2
        size *= 2
    return found


def network(ranks: torch.Tensor) -> torch.Tensor:
    """The order in which the network leaves numbers of these ranks, along the last dimension.

    >>> network(torch.tensor([0, 0, 0])), network(torch.tensor([1, 0, 1, 0]))
    (tensor([2, 1, 0]), tensor([1, 3, 2, 0]))
    """
    n = ranks.shape[-1]
    slots = torch.full((*ranks.shape[:-1], NETWORK), NETWORK)  # what is behind the numbers stays behind them
    slots[..., :n] = ranks
    places = torch.arange(NETWORK).expand(slots.shape).clone()
    for first, second, turned in _steps():
        swaps = (slots[..., first] < slots[..., second]) == turned
        for each in (slots, places):
            one, other = each[..., first], each[..., second]
            each[..., first], each[..., second] = torch.where(swaps, other, one), torch.where(swaps, one, other)
    return places[..., :n]


def _as_left(tensor: torch.Tensor, found: Found, dim: int) -> Found:
    """A stable sort's result in the network's order, where that may be another one."""
    values, indices = (each.movedim(dim, -1) for each in found)
    size = values.shape[-1] if values.dim() else 0
    if not 1 < size <= NETWORK or not values.numel():
        return found
    before, after = values[..., :-1], values[..., 1:]
    alike = (before == after) | ((before != before) & (after != after))
    if not alike.any():
        return found
    dense = torch.zeros(values.shape, dtype=torch.long)
    dense[..., 1:] = (~alike).cumsum(-1)
    ranks = torch.empty_like(dense).scatter_(-1, indices, dense)
    order = network(ranks)
    given = tensor.movedim(dim, -1).gather(-1, order)
    return _like(found, (given.movedim(-1, dim), order.movedim(-1, dim)))


def _like(found: Found, other: Found) -> Found:
    """Other numbers in the memory of a result, whose strides stay."""
    return found[0].copy_(other[0]), found[1].copy_(other[1])


def sort(tensor: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Found:
    """``aten::sort.stable``."""
    found: Found = aten.sort.stable(tensor, stable=True, dim=dim, descending=descending)
    return found if stable or tensor.is_meta else _as_left(tensor, found, dim)


def topk(tensor: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Found:  # noqa: A002 - torch's name
    """``aten::topk``."""
    found: Found = aten.topk.default(tensor, k, dim, largest, sorted)
    if tensor.is_meta or not tensor.dim() or not found[0].numel():
        return found
    values, indices = (each.movedim(dim, -1) for each in tensor.sort(dim=dim, descending=largest, stable=True))
    last = values[..., k - 1 : k]
    beyond = values[..., :k] != last
    beyond &= ~((values[..., :k] != values[..., :k]) & (last != last))
    # Those beyond the last one in the order of their places, and then those that equal it, which are in it already.
    count = tensor.shape[dim]
    places = torch.where(beyond, indices[..., :k], indices[..., :k] + count).sort(-1).values % count
    given = tensor.movedim(dim, -1).gather(-1, places)
    if not sorted:
        return _like(found, (given.movedim(-1, dim), places.movedim(-1, dim)))
    ordered = _as_left(given, given.sort(dim=-1, descending=largest, stable=True), -1)
    return _like(found, (ordered[0].movedim(-1, dim), places.gather(-1, ordered[1]).movedim(-1, dim)))


def into(made: Callable[..., Found]) -> Callable[..., Found]:
    """The same into given tensors."""

    def call(*args: Any, values: torch.Tensor, indices: torch.Tensor, **options: Any) -> Found:
        found = made(*args, **options)
        for given, value in zip((values, indices), found, strict=True):
            if given.shape != value.shape:
                given.resize_(value.shape)
            given.copy_(value)
        return values, indices

    return call


def thrust(step: str) -> None:
    """Thrust's algorithms wait after each of their steps, of which a capture hears at the first."""
    if (capture := current_stream().capture) is not None:
        capture.check()
        capture.fail(900)
        raise RuntimeError(f"{step}: failed to synchronize: {UNSUPPORTED}")
    forbid_in_capture(current_stream())


def unique_dim(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``aten::unique_dim``: Thrust sorts, and waits."""
    if tensor.numel():
        thrust("merge_sort")
    return _unique_dim(tensor, *args, **kwargs)


def mode(tensor: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """``aten::mode``: one kernel where a block of threads can sort all that is compared, otherwise Thrust."""
    if tensor.dim() and tensor.size(dim) > ONE_BLOCK and tensor.numel():
        thrust("transform")
    return _mode(tensor, dim, keepdim)


def mode_into(tensor: torch.Tensor, dim: int = -1, keepdim: bool = False, **given: torch.Tensor) -> Any:
    """The same into given tensors."""
    if tensor.dim() and tensor.size(dim) > ONE_BLOCK and tensor.numel():
        thrust("transform")
    return _mode_into(tensor, dim, keepdim, **given)


def _most_often(tensor: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Found:
    """What is there most often; among numbers a NaN ends up where the network leaves it, and equals no other one."""
    found: Found = aten.mode.default(tensor, dim, keepdim)
    size = tensor.shape[dim] if tensor.dim() else 1
    if tensor.is_meta or size < 2 or not tensor.is_floating_point() or not (nan := tensor.isnan()).any():
        return found
    rows = tensor.movedim(dim, -1).contiguous()
    values, indices = ((each if keepdim else each.unsqueeze(dim)).movedim(dim, -1)[..., 0] for each in found)
    for row in map(tuple, torch.nonzero(nan.movedim(dim, -1).any(-1)).tolist()):
        ordered = _left_by_the_network(rows[row])
        begins = torch.cat([torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
        places = torch.arange(size)
        length = places - torch.where(begins, places, 0).cummax(0).values
        values[row] = ordered[length.argmax()]
        equal = torch.nonzero(rows[row] == values[row])
        indices[row] = equal[-1, 0] if len(equal) else 0
    return found


def _left_by_the_network(numbers: torch.Tensor) -> torch.Tensor:
    """In the order of a network of a block of threads that asks which of two is less, which nobody is beside a NaN."""
    size = len(numbers)
    width = next(each for each in BLOCKS if each >= size)
    slots, there = torch.zeros(width, dtype=numbers.dtype), torch.arange(width) < size
    slots[:size] = numbers
    for first, second, turned in _steps(width):
        swaps = (((slots[first] < slots[second]) & there[first]) | ~there[second]) == turned
        for each in (slots, there):
            one, other = each[first], each[second]
            each[first], each[second] = torch.where(swaps, other, one), torch.where(swaps, one, other)
    return slots[:size]


_mode = Kernel(aten.mode.default, _most_often)
_mode_into = Kernel(aten.mode.values, into(_most_often))
_unique_dim = Kernel(aten.unique_dim.default)


def first_of_equal(op: Any) -> Callable[..., Found]:
    """One number of many, by its rank: of those that equal it the index is the first one's."""

    def find(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Found:
        found: Found = op(tensor, *args, **kwargs)
        if tensor.is_meta or not tensor.dim() or not found[0].numel():
            return found
        given = [a.name for a in op._schema.arguments[1:]]
        options = dict(zip(given, args, strict=False)) | kwargs
        dim, kept = options.get("dim", -1), options.get("keepdim", False)
        value = found[0] if kept else found[0].unsqueeze(dim)
        alike = (tensor == value) | ((tensor != tensor) & (value != value))
        return _like(found, (found[0], alike.to(torch.uint8).argmax(dim, keepdim=kept)))

    return find


def _nearly(best: Any, second: Any) -> bool:
    """Whether some numbers are apart by no more than another order of sums makes them: not those that are equal."""
    off = ROUNDED * np.finfo(best.dtype).eps
    one, other = best * (1 - off), best * (1 + off)  # which subtracts no infinities
    return bool(((second != best) & (second >= np.minimum(one, other)) & (second <= np.maximum(one, other))).any())


def _near_doubt(name: str) -> Doubt:
    """Of which number is the largest, or the smallest, where rounding decides."""
    largest = "max" in name

    def look(args: list[Any], kwargs: dict[str, Any], results: list[Any]) -> None:
        tensor, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
        if tensor.dtype not in (torch.float32, torch.float64) or not tensor.dim() or tensor.numel() < 2:
            return
        numbers, axis = tensor.detach().numpy(), dim
        if axis is None:
            numbers, axis = numbers.reshape(-1), 0
        if numbers.shape[axis] < 2:
            return
        at = numbers.shape[axis] - 2 if largest else 1
        parted = np.moveaxis(np.partition(numbers, at, axis=axis), axis, 0)
        if _nearly(*((parted[-1], parted[-2]) if largest else (parted[0], parted[1]))):
            not_known(ROUNDING.format(name=name))

    return look


def _order_doubt(args: list[Any], kwargs: dict[str, Any], results: list[Any]) -> None:
    """Of the order of few numbers, where rounding decides."""
    tensor, values = args[0], results[0]
    if tensor.dtype not in (torch.float32, torch.float64) or not values.dim() or values.numel() < 2:
        return
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    size = values.shape[dim]
    if not 1 < size <= NETWORK:
        return
    numbers = np.moveaxis(values.detach().numpy(), dim, 0)
    if _nearly(numbers[:-1], numbers[1:]):
        not_known(ROUNDING.format(name="topk" if len(args) > 1 else "sort"))


def sorting_kernels() -> dict[str, Any]:
    """The operations that order numbers, by name."""
    ranked = {
        "kthvalue": aten.kthvalue.default,
        "median.dim": aten.median.dim,
        "nanmedian.dim": aten.nanmedian.dim,
    }
    extremes = {
        "argmax": aten.argmax.default,
        "argmin": aten.argmin.default,
        "max.dim": aten.max.dim,
        "min.dim": aten.min.dim,
    }
    return {
        "sort.stable": Kernel(aten.sort.stable, sort, _order_doubt),
        "sort.values_stable": Kernel(aten.sort.values_stable, into(sort)),
        "topk": Kernel(aten.topk.default, topk, _order_doubt),
        "topk.values": Kernel(aten.topk.values, into(topk)),
        **{name: Kernel(op, doubt=_near_doubt(op._opname)) for name, op in extremes.items()},
        **{name: Kernel(op, first_of_equal(op)) for name, op in ranked.items()},
        "unique_dim": unique_dim,
        "mode": mode,
        "mode.values": mode_into,
    }
