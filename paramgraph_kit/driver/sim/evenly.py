"""Backward passes that ask the host on the CPU, and nobody on CUDA.

Of a whole maximum, minimum or median: where several elements are the largest, each gets its part of the gradient.
Torch asks first whether that is NaN, and fills by a mask; for a tensor on CUDA it computes both and chooses on the
device. Of ``x[mask] = 1.0``: on CUDA the number is a tensor of the host, and so are the zeros made like it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.driver.sim.autograd import current_node, sequence_number
from paramgraph_kit.driver.sim.kernels import Kernel
from paramgraph_kit.driver.sim.stream import current_stream

_filling: deque[int] = deque(maxlen=1024)  # numbers of nodes that these backward passes have made by filling
_SPREAD = frozenset(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"))


def nobody_asks(kernels: dict[str, Any]) -> dict[str, Any]:
    """The kernels by which these backward passes ask, of all kernels, so that they do not."""
    return {
        "_local_scalar_dense": _answered(kernels["_local_scalar_dense"]),
        "_index_put_impl_": _with_zeros(kernels["_index_put_impl_"]),
        "masked_select": _selected(kernels["masked_select"]),
        "masked_fill_.Tensor": _filled(kernels["masked_fill_.Tensor"], Kernel(torch.ops.aten.masked_fill_.Tensor)),
    }


def _answered(ask: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: torch.Tensor) -> Any:
        if current_stream().capture is not None and _spreads():
            return False  # whether it is NaN: then each element that is NaN would get a part
        return ask(tensor)

    return call


def _filled(read: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not _spreads():
            return read(*args)
        _filling.append(sequence_number() - 1)
        return run(*args)

    return call


def _selected(select: Callable[..., Any]) -> Callable[..., Any]:
    """Behind such a backward pass: CUDA multiplies with the mask, and the sum of what is selected is that of all."""

    def call(tensor: torch.Tensor, mask: torch.Tensor) -> Any:
        node = current_node()
        if node is not None and node.name() == "MaskedFillBackward1" and node._sequence_nr() in _filling:
            return tensor * mask
        return select(tensor, mask)

    return call


def _with_zeros(put: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: torch.Tensor, indices: Any, values: torch.Tensor, *rest: Any) -> Any:
        if not values.dim() and any(i is not None and i.dtype is torch.bool for i in indices) and _is_in("IndexPut"):
            values = torch.zeros((), dtype=values.dtype)
        return put(tensor, indices, values, *rest)

    return call


def _is_in(name: str) -> bool:
    node = current_node()
    return node is not None and node.name() == f"{name}Backward0"


def _spreads() -> bool:
    node = current_node()
    return node is not None and node.name() in _SPREAD
