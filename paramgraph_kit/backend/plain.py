"""Values that code reads as they are: part of a trace's key, and constants in its graphs."""

from __future__ import annotations

import enum
from typing import Any

import torch

PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.Size,
         enum.Enum)  # fmt: skip


def plain_key(value: Any) -> Any:
    """A plain value in a key: 0.0 is not -0.0, 1 is not True, and a NaN is found again.

    >>> plain_key(1) == plain_key(True), plain_key(0.0) == plain_key(-0.0)
    (False, False)
    """
    if isinstance(value, float):
        return type(value), value.hex()
    return type(value), repr(value) if isinstance(value, complex) else value
