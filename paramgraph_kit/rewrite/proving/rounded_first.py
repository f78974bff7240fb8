"""Numbers that are tensors now and meet halves: they are rounded to a half first, where a number keeps its digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

ROUNDED = "how often a tensor of one number meets halves, which rounds it first"
_HALVES = (torch.bfloat16, torch.float16)
_WIDE = (torch.float32, torch.float64)


def is_rounded_first(args: Sequence[Any]) -> bool:
    """Whether an operation is given halves and a tensor of one number with more digits.

    >>> tenth = torch.tensor(0.1)
    >>> is_rounded_first((torch.ones(3).half(), tenth)), is_rounded_first((torch.ones(3), tenth))
    (True, False)
    """
    if len(args) < 2 or not isinstance(args[0], torch.Tensor) or not isinstance(args[1], torch.Tensor):
        return False
    one, other = args[0], args[1]
    if one.dtype not in _HALVES:
        one, other = other, one
    return one.dtype in _HALVES and one.dim() > 0 and other.dim() == 0 and other.dtype in _WIDE
