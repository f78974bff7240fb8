"""What an operation is given: tensors and numbers, also those in lists, and which of them it gives other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.driver.tensors import same_place

NO_KERNELS = ("detach", "alias", "lift_fresh")  # operations that give what they are given
Value = int | float | bool | complex


def sort(arguments: tuple[Any, ...], tensors: list[torch.Tensor], values: list[Value]) -> None:
    """Append what is among the arguments."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
        elif isinstance(argument, (int, float, complex)):
            values.append(argument)
        elif isinstance(argument, (list, tuple)):
            sort(tuple(argument), tensors, values)


def written_by(op: Operation, args: Sequence[Any]) -> set[int]:
    """The ids of arguments that an operation writes; none where it copies a tensor to where it lies."""
    return {id(args[i]) for i in op.written if i < len(args)} if not is_in_vain(op.name, args) else set()


def is_in_vain(name: str, args: Sequence[Any]) -> bool:
    """Whether an operation copies a tensor to where it lies.

    >>> x = torch.ones(4)
    >>> is_in_vain("copy_", [x, x.view(4)]), is_in_vain("copy_", [x, x.clone()]), is_in_vain("add_", [x, x])
    (True, False, False)
    """
    if name != "copy_" or not all(isinstance(each, torch.Tensor) for each in args[:2]):
        return False
    one, other = args[:2]
    is_strided = one.layout is other.layout is torch.strided
    return is_strided and one.shape == other.shape and one.numel() > 0 and same_place(one, other)
