"""Tensors that a step puts onto other memory, as ``p.data = 0.99 * p.data + 0.01 * q.data`` does.

Where such a tensor lies is a cell: a launch reads it wherever it lies by then, and puts it onto what the step has made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.driver.tensors import not_carried
from paramgraph_kit.step.holders import Holder
from paramgraph_kit.step.reach import Reach

_KINDS = (torch.Tensor, torch.nn.Parameter)


def lying(reach: Reach, device: torch.device, given: Sequence[tuple[str, Any]]) -> dict[int, tuple[torch.Tensor, bool]]:
    """For the state's tensors on the device what holds the memory that each lies on, and whether it needs gradients."""
    apart = {id(x) for x in pytree.tree_leaves([value for _, value in given])}  # others at each call
    state = ((key, t) for key, (_, t) in reach.tensors.items() if key not in apart)
    plain = ((key, t) for key, t in state if t.device == device and type(t) in _KINDS and not_carried(t) is None)
    return {key: (t.detach(), bool(t.requires_grad)) for key, t in plain}


def moves(
    reach: Reach, before: Mapping[int, tuple[torch.Tensor, bool]]
) -> Iterator[tuple[Holder, bool, torch.Tensor, torch.Tensor]]:
    """Tensors that lie elsewhere by now and are what they were otherwise: (holder, key, memory then, memory now)."""
    for key, (then, needed) in before.items():
        name, tensor = reach.tensors.get(key, ("", None))
        if tensor is None or (now := tensor.detach()).data_ptr() == then.data_ptr() or not now.numel():
            continue
        if not_carried(tensor) is None and _look(now) == _look(then) and bool(tensor.requires_grad) is needed:
            yield Holder("data", name, tensor), needed, then, now


def _look(x: torch.Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, x.device, x.is_conj(), x.is_neg()
