"""What an operation is given: tensors and numbers, also those in lists, and which of them it gives other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.tensors import same_place
from paramgraph_kit.driver.torch_names import torch_name

_has_kernel = torch_name("_dispatch_has_computed_kernel_for_dispatch_key")
Origin = tuple[int, int, tuple[int, ...]]  # a maker's number, and where in its result it lies: an offset, and strides
OUTPUTS = 16  # bits of a maker's number that say which of its results it is
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


def made_by(result: Any) -> list[tuple[int, torch.Tensor]]:
    """The tensors that an operation gives, with what names their memory."""
    parts = result if isinstance(result, (list, tuple)) else (result,)
    return [(storage_key(each), each) for each in parts if isinstance(each, torch.Tensor)]


def origin(tensor: torch.Tensor, maker: int) -> Origin:
    """Which tensor of a call it is, the same in each call that takes the same way: its maker, and where it lies."""
    try:
        return maker, int(tensor.storage_offset()), tensor.stride()
    except (RuntimeError, NotImplementedError):  # of a sparse or a nested one
        return maker, 0, ()


def written_by(op: Operation, args: Sequence[Any]) -> set[int]:
    """The ids of arguments that an operation writes; none where it copies a tensor to where it lies."""
    if not op.written or is_in_vain(op.name, args):
        return set()
    return {id(args[i]) for i in op.written if i < len(args)}


def filled_by(op: Operation, args: Sequence[Any]) -> set[int]:
    """The same, with those in lists that it writes to, as ``_foreach_copy_`` does."""
    lists = (args[i] for i in op.written if i < len(args) and isinstance(args[i], (list, tuple)))
    return written_by(op, args).union(*(map(id, each) for each in lists))


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


def custom_kernel(func: Any, tensors: list[torch.Tensor], device: str) -> torch._C.DispatchKeySet | None:
    """The key of the kernel of a custom operation, which is run by itself so that its inside is seen; else None."""
    if not tensors or any(t.is_conj() for t in tensors):
        return None
    kind = device if any(t.device.type == device for t in tensors) else tensors[0].device.type
    key = {"cuda": "CUDA", "cpu": "CPU"}.get(kind, "PrivateUse1")
    if not _has_kernel(func.name(), key):
        return None
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
