"""The tensors that a value holds, whatever it is: lists that hold themselves hold none that anybody could name."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, as a result is one."""
    try:
        return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    except RecursionError:
        return []
