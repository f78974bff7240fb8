"""Writes to places that come twice, of which a GPU's threads leave one or another.

Where all that is written to a place is the same nothing depends on that. Kernels that add up are none of these. Of
what one warp writes at once the first stays (an H100 and an H200 did so); of more, nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .kernels import Doubt, Kernel
from .moving import as_whole, moved
from .not_known import not_known
from .overlap import WARP

aten: Any = torch.ops.aten
FEW = 64  # places that are compared one by one
_Read = Callable[..., tuple[torch.Tensor, torch.Tensor] | None]  # what lies where an operation wrote, and what it wrote


def _differ(places: Sequence[torch.Tensor], size: int) -> bool:
    """Whether it is seen at once that no place comes twice; ``size`` of the dimension of a single index."""
    if max(each.numel() for each in places) < 2:
        return True
    if len(places) > 1 or places[0].dim() != 1 or places[0].numel() > FEW:
        return False
    found = [at % size for at in places[0].tolist()]
    return len(set(found)) == len(found)


def _put(
    target: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    *_: Any,
) -> Any:
    places = [each for each in indices if each is not None]
    masked = any(each.dtype in (torch.bool, torch.uint8) for each in places)
    if accumulate or values.numel() < 2 or masked or torch.are_deterministic_algorithms_enabled():
        return None
    first = next(i for i, each in enumerate(indices) if each is not None)
    if _differ(places, target.shape[first]):
        return None
    there = aten.index.Tensor(target, indices)
    return there, values.expand(there.shape)


def _scattered(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any) -> Any:
    if not index.dim() or (index.dim() == 1 and _differ([index], target.shape[0])) or index.shape[dim] < 2:
        return None
    return target.gather(dim, index), source[tuple(slice(n) for n in index.shape)]


def _copied(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any) -> Any:
    if not target.dim() or not index.dim() or _differ([index], target.shape[dim]):
        return None
    return target.index_select(dim, index), source


def _taken(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> Any:
    if accumulate or _differ([index], target.numel()):
        return None
    return target.take(index), source


def _unpooled(target: torch.Tensor, pooled: torch.Tensor, index: torch.Tensor, size: Sequence[int], *_: Any) -> Any:
    flat = target.flatten(-len(size)), index.flatten(-len(size))
    return flat[0].gather(-1, flat[1]), pooled.flatten(-len(size))


def _doubt(name: str, read: _Read, takes_target: bool = True) -> Doubt:
    def look(args: list[Any], kwargs: dict[str, Any], results: list[Any]) -> None:
        given = [*(args[1:] if takes_target else args), *kwargs.values()]
        target, rest = tree_map_only(torch.Tensor, as_whole, (results[0], given))
        found = read(target, *rest)
        if found is None:
            return
        there, written = found
        if ((there == written) | ((there != there) & (written != written))).all():
            return
        if written.numel() <= WARP:
            again = read(torch.arange(target.numel()).view(target.shape), *rest)
            assert again is not None
            target.put_(again[0].flatten().flip(0), written.flatten().flip(0))
        else:
            not_known(f"which write stays of several to one place: {name} has a place more than once")

    return look


def writing_kernels() -> dict[str, Any]:
    """The operations that write to places which they are given, by name."""
    found = {}
    for read, names in (
        (_scattered, ("scatter.src", "scatter_.src", "scatter.src_out")),
        (_copied, ("index_copy", "index_copy_", "index_copy.out")),
        (_taken, ("put_",)),
        (_unpooled, ("max_unpool2d", "max_unpool3d")),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            moves = moved(op) if name in ("scatter.src", "scatter_.src") else None
            found[name] = Kernel(op, moves, doubt=_doubt(packet.rstrip("_"), read, read is not _unpooled))
    return found


put = _doubt("x[index] = y", _put)
