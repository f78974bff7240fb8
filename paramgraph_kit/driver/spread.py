"""How far a result is from what the same code gives, held against how far that code is from itself.

Sums in no fixed order (atomic additions) differ from run to run: no bits can be asked for, and nobody knows in advance
how far they may be apart. So it is measured, and nothing is allowed that was not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

AGAIN = 6  # runs of the code, at most, to see how far it is from itself
NOISE = 16.0  # times that far a result may be, at most: a few runs do not show all orders of a sum
_Key = TypeVar("_Key")


def distance(a: Any, b: Any) -> float:
    """The largest difference of two numbers at one place; infinite where they are not of a kind that has any.

    >>> distance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])), distance(1, 2)
    (2.0, inf)
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return math.inf
    if (a.shape, a.dtype) != (b.shape, b.dtype) or not (a.is_floating_point() or a.is_complex()):
        return math.inf
    if a.layout != torch.strided:
        return math.inf
    with torch.no_grad():
        unlike = ~((a == b) | (a.isnan() & b.isnan()))
        one, other = a[unlike], b.to(a.device)[unlike]
        wide = torch.complex128 if a.is_complex() else torch.float64
        far = (one.to(wide) - other.to(wide)).abs().max().item() if len(one) else 0.0
    return max(far, sys.float_info.min) if math.isfinite(far) else math.inf


def beyond(away: Mapping[_Key, float], again: Callable[[], Mapping[_Key, float]]) -> set[_Key]:
    """Where a result is farther from a run of the code than further runs are, each made by ``again``.

    >>> beyond({"loss": 1e-7}, lambda: {"loss": 6e-8}), beyond({"loss": 1e-3}, lambda: {"loss": 6e-8})
    (set(), {'loss'})
    """
    noise: dict[_Key, float] = {}
    for _ in range(AGAIN):
        for key, far in again().items():
            noise[key] = max(far, noise.get(key, 0.0))
        sure = {key for key, far in away.items() if far > NOISE * noise.get(key, 0.0)}
        if not sure:
            return sure
    return sure
