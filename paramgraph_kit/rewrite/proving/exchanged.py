"""Tensors that a step reads, and exchanges for others: a graph reads the first of them for ever.

Replays may look right all the same: of ``self.high = torch.where(new > self.high, new, self.high)`` as long as no new
one is higher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.keeper import storage_key


class ExchangedError(RuntimeError):
    """A step reads a tensor in whose place it leaves another one."""


class Held:
    """What variables and attributes of the user's hold now, by the memory of each tensor."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        self._holders = [
            holder for holder in holders if not holder.of_torch and holder.kind not in ("class", "generator")
        ]
        self._tensors = self._now()
        self._keys = {at: storage_key(tensor) for at, tensor in self._tensors.items()}

    def check(self, read: Collection[int]) -> None:
        """Called behind the step, with the memory that it has read.

        Raises:
            ExchangedError: some of that was held when this was made, and another tensor is there now.
        """
        for at, tensor in self._now().items():
            old = self._keys.get(at, 0)
            if old and old in read and storage_key(tensor) != old:
                raise ExchangedError(f"`{at[0]}` is another tensor behind each step, and a graph reads the first one")

    def _now(self) -> dict[tuple[str, int, Any], torch.Tensor]:
        found: dict[tuple[str, int, Any], torch.Tensor] = {}
        for number, holder in enumerate(self._holders):
            value = holder.read()
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for name, each in entries:
                if isinstance(each, torch.Tensor):
                    path = f"{holder.name}.{name}" if holder.kind in ("attributes", "slots") else holder.name
                    found[path, number, name] = each
        return found
