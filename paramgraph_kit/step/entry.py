"""Gradients that a step frees at its beginning: whoever watches it must not hold them, or it needs two sets of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from paramgraph_kit.driver.tensors import not_carried
from paramgraph_kit.step.holders import Holder
from paramgraph_kit.step.reach import Reach


@dataclass(frozen=True, slots=True)
class _Old:
    """A gradient at the entry of a call, as far as it is known without holding it."""

    holder: Holder
    contents: dict[Any, Any]
    name: str
    key: int
    reference: TensorWeakRef
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def again(self) -> torch.Tensor | None:
        """The tensor, if somebody holds it."""
        return self.reference()  # type: ignore[no-any-return]

    def like(self) -> torch.Tensor:
        """One that looks the same, in its place: a capture reads no values."""
        now = self.holder.target.grad
        then = self.size, self.stride, self.dtype, self.device
        if now is not None and _plain(now) and (tuple(now.shape), tuple(now.stride()), now.dtype, now.device) == then:
            return now.detach()  # type: ignore[no-any-return]
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def let_go(reach: Reach, contents: Sequence[dict[Any, Any]]) -> list[_Old]:
    """Hold the gradients no more that a walk has found; ``take_up`` says after the call what became of them."""
    found = []
    for holder, held in zip(reach.holders, contents, strict=True):
        gradient = held[""] if holder.kind == "gradient" else None
        if gradient is None or not _plain(gradient) or id(gradient) not in reach.tensors:
            continue
        name, _ = reach.tensors.pop(id(gradient))
        look = tuple(gradient.shape), tuple(gradient.stride()), gradient.dtype, gradient.device
        found.append(_Old(holder, held, name, id(gradient), TensorWeakRef(gradient), *look))
        held[""] = None
    reach.forget({old.key for old in found})
    return found


def take_up(reach: Reach, olds: Sequence[_Old]) -> Iterator[int]:
    """Hold them again, or others that look the same where they are gone; yields the ids of those."""
    for old in olds:
        if (gradient := old.again()) is None:
            old.contents[""] = old.like()
            yield old.key
        else:
            old.contents[""] = gradient
            reach.tensors[old.key] = old.name, gradient


def _plain(gradient: torch.Tensor) -> bool:
    """Whether its sizes, strides and type are all that there is to it."""
    return (
        type(gradient) is torch.Tensor
        and not gradient.requires_grad
        and not gradient.is_conj()
        and not gradient.is_neg()
        and not_carried(gradient) is None
        and not gradient._backward_hooks
        and not getattr(gradient, "__dict__", None)
    )
