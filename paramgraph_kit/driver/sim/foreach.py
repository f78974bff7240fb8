"""Operations of lists of tensors: one kernel for all, or one each where some are the host's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from .kernels import Kernel
from .machine import CPU_KEY, DEVICE_NAME

aten = torch.ops.aten


def foreach_kernel(op: Any) -> Callable[..., Any]:
    """One kernel for a list of tensors, or one each where some are the host's; numbers for each are the host's."""
    run = Kernel(op, _at_once(op) if op._opname.endswith("_") else None)
    numbers = next((n for n, each in enumerate(op._schema.arguments) if each.name == "scalars"), -1)
    listed = getattr(op.overloadpacket, "ScalarList", None) if op._overloadname == "Tensor" and numbers > 0 else None

    def call(*args: Any, **kwargs: Any) -> Any:
        if listed is not None:
            return listed(*args[:numbers], _numbers(args[numbers], len(args[0])), *args[numbers + 1 :], **kwargs)
        lists = [each for each in args if isinstance(each, (list, tuple))]
        if any(isinstance(each, torch.Tensor) and each.is_cpu for given in lists for each in given):
            return op.redispatch(CPU_KEY, *args, **kwargs)
        return run(*args, **kwargs)

    return call


def _at_once(op: Any) -> Callable[..., Any]:
    """The same of a list in which a tensor comes twice: of those of one type each is read before any is written."""

    def run(targets: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        places = [each.data_ptr() if each.numel() else -n for n, each in enumerate(targets)]
        if len({*places}) == len(places) or len({each.dtype for each in targets}) > 1:
            return op(targets, *args, **kwargs)
        apart = [each.clone() if places.index(places[n]) < n else each for n, each in enumerate(targets)]
        op(apart, *args, **kwargs)
        for target, written in zip(targets, apart, strict=True):
            if written is not target:
                target.copy_(written)
        return None

    return run


def _numbers(scalars: torch.Tensor, length: int) -> list[Any]:
    if scalars.device.type == DEVICE_NAME:
        raise RuntimeError(f"Expected scalars to be on CPU, got {scalars.device} instead.")
    if scalars.dim() != 1:
        raise RuntimeError(f"Expected packed scalar Tensor to be of dimension 1. Got {scalars.dim()} instead.")
    if len(scalars) != length:
        raise RuntimeError(
            f"Expected length of scalars to match input of length {length} but got {len(scalars)} instead."
        )
    found: list[Any] = scalars.tolist()
    return found


def foreach_copy_(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], non_blocking: bool = False) -> None:
    """``aten::_foreach_copy_``: one kernel for all on the device, and else copies, one by one."""
    pairs = list(zip(targets, sources, strict=True))
    if all(target.device == source.device for target, source in pairs):
        _foreach_copy(targets, sources, non_blocking)
        return
    for target, source in pairs:
        target.copy_(source, non_blocking)


_foreach_copy = Kernel(aten._foreach_copy_.default)


def foreach_kernels() -> dict[str, Any]:
    """Every one of them, by the name of its operation."""
    found: dict[str, Any] = {}
    for full in torch_name("_dispatch_get_all_op_names")():  # dir(aten) has only what somebody has asked for
        if full.startswith("aten::_foreach_") and not full.endswith("out"):
            packet, _, overload = full[6:].partition(".")
            found[full[6:]] = foreach_kernel(getattr(getattr(aten, packet), overload or "default"))
    return found | {"_foreach_copy_": foreach_copy_}
