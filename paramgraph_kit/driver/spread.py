"""How far a result is from what the same code gives, held against how far that code is from itself.

Sums in no fixed order (atomic additions) differ from run to run: no bits can be asked for, and nobody knows in advance
how far they may be apart. So it is measured. A few runs do not show every place where orders may differ: where they
show it at one, results at the others may differ by what rounding another sum may cost.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch

AGAIN = 6  # runs of the code, at most, to see how far it is from itself
NOISE = 16.0  # times that far a result may be, at most: a few runs do not show all orders of a sum
_Key = TypeVar("_Key")


class Apart(NamedTuple):
    """How far two results are from one another."""

    far: float  # the largest difference of two numbers at one place
    unit: float = 0.0  # of which rounding costs one: the step between numbers as large as the largest one here


BEYOND_NUMBERS = Apart(math.inf)


def distance(a: Any, b: Any) -> Apart:
    """The largest difference of two numbers at one place; infinite where they are not of a kind that has any.

    >>> distance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])).far, distance(1, 2).far
    (2.0, inf)
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return BEYOND_NUMBERS
    if (a.shape, a.dtype) != (b.shape, b.dtype) or not (a.is_floating_point() or a.is_complex()):
        return BEYOND_NUMBERS
    if a.layout != torch.strided:
        return BEYOND_NUMBERS
    with torch.no_grad():
        unlike = ~((a == b) | (a.isnan() & b.isnan()))
        one, other = a[unlike], b.to(a.device)[unlike]
        wide = torch.complex128 if a.is_complex() else torch.float64
        far = (one.to(wide) - other.to(wide)).abs().max().item() if len(one) else 0.0
    return Apart(max(far, sys.float_info.min), _unit(b)) if math.isfinite(far) else BEYOND_NUMBERS


def only_rounded(away: Mapping[_Key, Apart]) -> bool:
    """Whether sums in another order can be all that differs; that is no proof that they are.

    >>> only_rounded({"loss": Apart(1e-7, 1e-7)}), only_rounded({"loss": Apart(1e-3, 1e-7)})
    (True, False)
    """
    return all(apart.far <= NOISE * apart.unit for apart in away.values())


@torch.no_grad()
def _unit(x: torch.Tensor) -> float:
    """The step between neighbouring numbers as large as the largest finite one."""
    sizes = (x.float() if x.dtype.itemsize == 1 else x).abs().nan_to_num(0.0, 0.0, 0.0)
    return torch.finfo(x.dtype).eps * float(sizes.max().item()) if x.numel() else 0.0


def beyond(away: Mapping[_Key, Apart], again: Callable[[], Mapping[_Key, Apart]]) -> set[_Key]:
    """Where a result is farther from a run of the code than further runs are, each made by ``again``.

    >>> near, far = Apart(1e-7, 1e-7), Apart(1e-3, 1e-7)
    >>> beyond({"loss": near}, lambda: {"loss": near}), beyond({"loss": far}, lambda: {"loss": near})
    (set(), {'loss'})

    What is rounding's may differ where none of the runs did, if they did anywhere:

    >>> beyond({"loss": near}, lambda: {"weight": far}), beyond({"loss": near}, dict)
    (set(), {'loss'})
    """
    noise: dict[_Key, float] = {}
    for _ in range(AGAIN):
        for key, apart in again().items():
            noise[key] = max(apart.far, noise.get(key, 0.0))
        unordered = any(math.isfinite(far) for far in noise.values())
        sure = {
            key
            for key, apart in away.items()
            if apart.far > NOISE * max(noise.get(key, 0.0), apart.unit if unordered else 0.0)
        }
        if not sure:
            return sure
    return sure
