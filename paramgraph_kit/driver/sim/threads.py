"""Small kernels run on one thread of the host: where its cores are shared, a second one is waited for in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FEW = 1 << 18  # numbers that one thread is done with in the time that handling a kernel takes


class OnOneThread:
    """While this lasts torch computes on this thread alone, if the operands of an operation are small."""

    __slots__ = ("_operands", "_threads")

    def __init__(self, operands: Sequence[Any]) -> None:
        self._operands, self._threads = operands, 0

    def __enter__(self) -> None:
        threads = torch.get_num_threads()
        if threads > 1 and _numbers(self._operands) <= FEW:
            self._threads = threads
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)


def _numbers(operands: Sequence[Any]) -> int:
    """How many numbers the tensors among some operands have."""
    found = 0
    for each in operands:
        if isinstance(each, torch.Tensor):
            found += each.numel()
        elif isinstance(each, (list, tuple)) and each and isinstance(each[0], torch.Tensor):
            found += sum(one.numel() for one in each if one is not None)
    return found
