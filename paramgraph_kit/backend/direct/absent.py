"""Gradients of results that nobody used: zeros, which a backward only reads.

A model returns more than its loss is made of: a cache, hidden states, logits beside a loss. Autograd would make zeros
for each of these at each call, and a copy of those that are wanted with other strides. All can share one memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import torch_name

MOST = 16 << 20  # bytes that are kept; what needs more is made anew at each call


@dataclass(frozen=True, slots=True)
class Tangent:
    """How the backward wants the gradient of one output."""

    output: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def length(self) -> int:
        """Elements from the first to the last."""
        return extent(self.size, self.stride)

    def fit(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient itself where it lies as wanted, a copy otherwise."""
        if gradient.stride() == self.stride:
            return gradient
        if not torch_name("_has_storage")(gradient):  # batched: nothing that is not can be written with it
            order = sorted(range(len(self.stride)), key=lambda k: -self.stride[k])
            back = sorted(range(len(order)), key=order.__getitem__)
            laid = gradient.permute(order).contiguous().permute(back)
            if laid.stride() == self.stride:
                return laid
        fitted = torch.empty_strided(self.size, self.stride, dtype=gradient.dtype, device=gradient.device)
        return fitted.copy_(gradient)


class Zeros:
    """Zeros in the place of tangents; ``returned`` are those that the backward gives back, to be written by anybody."""

    def __init__(self, driver: Driver, tangents: Sequence[Tangent], returned: Collection[int]) -> None:
        self._driver, self._tangents = driver, tangents
        self._kept = {
            k: tangent
            for k, tangent in enumerate(tangents)
            if k not in returned and tangent.length * tangent.dtype.itemsize <= MOST
        }
        # By stream, on which they were filled and are read: other streams would have to wait for that.
        self._made: dict[int, dict[int, torch.Tensor]] = {}

    def __call__(self, k: int) -> torch.Tensor:
        """Zeros for the tangent with this number."""
        if k not in self._kept or self._driver.is_capturing():  # memory of somebody's capture is not for keeping
            return self._new(self._tangents[k])
        stream = self._driver.current_stream()
        if stream not in self._made:
            self._made[stream] = self._make()
        return self._made[stream][k]

    def _make(self) -> dict[int, torch.Tensor]:
        nbytes = max(tangent.length * tangent.dtype.itemsize for tangent in self._kept.values())
        memory = torch.zeros(-(-nbytes // 16) * 16, dtype=torch.uint8, device=self._driver.device)
        return {k: memory.view(t.dtype).as_strided(t.size, t.stride) for k, t in self._kept.items()}

    def _new(self, tangent: Tangent) -> torch.Tensor:
        flat = torch.zeros(tangent.length, dtype=tangent.dtype, device=self._driver.device)
        return flat.as_strided(tangent.size, tangent.stride)
