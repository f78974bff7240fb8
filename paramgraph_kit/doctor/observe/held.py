"""The tensors that a value holds, whatever it is: it may hold itself, or raise when it is asked for its class."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, as a result is one."""
    with suppress(Exception):
        return [each for each in tree_leaves(value) if issubclass(type(each), torch.Tensor)]
    return []
