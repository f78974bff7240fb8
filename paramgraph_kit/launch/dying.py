"""Which inputs of a call nobody else holds: their memory is free once the partition has read them."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name


def dies_here(inputs: list[Any], position: int) -> bool:
    """Whether the caller's list holds the only reference to an input, so that its memory is free after the call."""
    tensor = inputs[position]
    return sys.getrefcount(tensor) <= 3 and _storage_holders(tensor) <= 2  # the list, ``tensor`` and the argument


def _storage_holders(tensor: torch.Tensor) -> int:
    """How many hold a tensor's storage, the Python object that asks included."""
    storage = tensor.untyped_storage()
    count: int = torch_name("_storage_Use_Count")(storage._cdata)
    # All who hold the Python object count as one in C++.
    return count + sys.getrefcount(storage) - _own_references()


@cache
def _own_references() -> int:
    """References to a storage's Python object that nobody else holds: some versions of torch keep one themselves."""
    probe = torch.empty((), device="cpu")
    storage = probe.untyped_storage()
    return sys.getrefcount(storage)
