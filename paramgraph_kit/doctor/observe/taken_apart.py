"""What is made of other operations, and comes whole where autograd does not take it apart: in inference mode."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

_FIRST = 2  # arguments, among which the tensor is that an operation is asked of


def without_autograd(args: tuple[Any, ...]) -> bool:
    """Whether nothing takes an operation apart: inference mode is on, or was where its tensor was made."""
    given = (each for each in args[:_FIRST] if isinstance(each, torch.Tensor))
    return torch.is_inference_mode_enabled() or any(each.is_inference() for each in given)


def taken_apart(mode: AbstractContextManager[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What one gives whose parts a mode sees; NotImplemented of all that is not made of others."""
    if not hasattr(func, "decompose"):
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)
