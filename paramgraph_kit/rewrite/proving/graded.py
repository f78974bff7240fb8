"""Whether gradients go back from what steps return or leave: lines that lose ``no_grad`` keep graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from paramgraph_kit.rewrite.proving.results import known


def graded(value: Any) -> list[Any]:
    """Of each tensor and number in something whether it leads gradients back, or takes them.

    >>> graded({"a": torch.ones(1), "b": torch.ones(1, requires_grad=True), "c": 1.0})
    [tensor(False), tensor(True), tensor(False)]
    """
    return [torch.tensor(bool(getattr(each, "requires_grad", False)), device="cpu") for each in known(value)]


def graded_results(steps: Sequence[Sequence[Any]]) -> list[Any]:
    """The same of what steps return: whether each does in one of them, as zeros in another branch do not."""
    no = torch.tensor(False, device="cpu")
    return [torch.stack(row).any() for row in zip_longest(*steps, fillvalue=no)]
