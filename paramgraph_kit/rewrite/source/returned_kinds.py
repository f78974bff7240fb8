"""What of the host's a function returns, as its callers know it: numbers, arrays, lists, tensors of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paramgraph_kit.rewrite.source.place import NUMBER

BACK = {"a list": ".tolist()", "an array": ".cpu().numpy()", "a tensor of the CPU": ".cpu()"}
A_NUMBER = "a number"


def parts_of(result: Any) -> dict[Any, Any]:
    """The parts of a tuple or a dictionary that is returned, or the one result.

    >>> parts_of((1, 2)), parts_of({"loss": 1}), parts_of(1)
    ({0: 1, 1: 2}, {'loss': 1}, {0: 1})
    """
    if type(result) is dict:
        return result
    return dict(enumerate(result if type(result) is tuple else (result,)))


def kinds_of(result: Any) -> dict[Any, str]:
    """Which parts of a result are the host's, and what they are."""
    kinds = {at: _kind_of(value) for at, value in parts_of(result).items()}
    return {at: kind for at, kind in kinds.items() if kind}


def on_the_device(result: Any) -> dict[Any, bool]:
    """Which parts of a result are tensors of the device, and whether each is one number."""
    parts = parts_of(result).items()
    tensors = {at: value for at, value in parts if isinstance(value, torch.Tensor)}
    return {at: value.numel() == 1 for at, value in tensors.items() if value.numel() == 1 or value.device.type != "cpu"}


def both(one: dict[Any, str], other: dict[Any, str]) -> dict[Any, str]:
    """What two calls agree in."""
    return {at: kind for at, kind in one.items() if other.get(at) == kind}


def _kind_of(value: Any) -> str:
    if type(value) in NUMBER or isinstance(value, np.generic):
        return A_NUMBER
    if isinstance(value, np.ndarray):
        return "an array"
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return "a tensor of the CPU"
    numbers = isinstance(value, list) and value and all(type(each) in NUMBER for each in value)
    return "a list" if numbers else ""
