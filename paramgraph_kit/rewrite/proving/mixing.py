"""Other values for a trial: integers in another order, where each may stand there, and numbers rounded otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

CHANCE = 0.1  # of taking slices for unlike that are alike; then they are mixed along the other dimensions only


def moved(value: Any, i: int, how: str = "all") -> Any:
    """Tensors at other addresses with other values: drawn from their own, so that they stay in their range.

    Every other step has larger ones, where some lie beyond 1 and so are no probabilities: what a maximum keeps moves.
    ``how`` says what moves: "all", "floats", or "nothing" but the addresses.
    """
    generator = torch.Generator().manual_seed(i)

    def one(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
            return tensor
        plain = tensor.detach().cpu()
        flat = plain.reshape(-1)
        if not flat.numel():
            return tensor
        if how == "nothing":
            drawn = plain.clone()
        elif plain.is_floating_point():
            grows = i % 2 and bool((flat.abs() > 1).any())
            drawn = flat[torch.randint(len(flat), (len(flat),), generator=generator, device="cpu")] * (
                1 + (i if grows else -i) / 32
            )
        else:  # the largest of them, and how many there are of each, may be a size
            drawn = in_another_order(plain, generator) if how == "all" else plain.clone()
        drawn = drawn.reshape(plain.shape)
        return drawn.to(tensor.device).requires_grad_(tensor.requires_grad)

    return tree_map(one, value)


def in_another_order(plain: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same integers, shuffled.

    A column of categories, or the row of an edge's targets, has a range of its own: an index from elsewhere may be
    beyond a table, which on a GPU ends the context. So slices stay apart along the dimension where they are unlike.
    """
    flat = plain.reshape(-1)
    if plain.dim() < 2 or plain.dtype == torch.bool:
        return flat[torch.randperm(len(flat), generator=generator, device="cpu")].reshape(plain.shape)
    chances = [_likeness(plain, dim) for dim in range(plain.dim())]
    dim = chances.index(min(chances))
    if chances[dim] >= CHANCE:
        return flat[torch.randperm(len(flat), generator=generator, device="cpu")].reshape(plain.shape)
    slices = plain.movedim(dim, 0)
    rows = slices.reshape(len(slices), -1)
    mixed = torch.stack([row[torch.randperm(len(row), generator=generator, device="cpu")] for row in rows])
    return mixed.reshape(slices.shape).movedim(0, dim)


def _likeness(plain: torch.Tensor, dim: int) -> float:
    """How probable a range as narrow as the narrowest slice's is, had all slices been drawn from all elements."""
    slices = plain.movedim(dim, 0).flatten(1)
    number, length = slices.shape
    if number < 2 or length < 2:
        return 1.0
    ordered = plain.flatten().sort().values
    below = torch.searchsorted(ordered, slices.amax(1), right=True).double() / len(ordered)
    above = 1 - torch.searchsorted(ordered, slices.amin(1)).double() / len(ordered)
    return float((torch.minimum(below, above) ** length).min())


def rounded_otherwise(value: Any, up: int = 0) -> Any:
    """A tensor whose last bits are others; ``up`` says whether the even or the odd elements become larger."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    plain = value.detach().cpu()
    signs = torch.ones_like(plain).flatten()
    signs[1 - up :: 2] = -1
    signs[plain.flatten().abs() == 1] = -1  # beyond 1 lies no probability
    other = plain * (1 + torch.finfo(plain.dtype).eps * signs.view_as(plain))
    return other.to(value.device).requires_grad_(value.requires_grad)
