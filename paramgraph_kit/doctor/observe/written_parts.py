"""Memory that a capture writes over in parts: whether it goes on from what it has not written over there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from paramgraph_kit.doctor.restore.keeper import storage_key

_MOST = 1 << 22  # elements of one memory that are told apart


@dataclass(slots=True)
class _Parts:
    size: int  # of one element, in bytes
    over: torch.Tensor  # which elements are written over
    read: torch.Tensor  # and which were read ahead of that

    def of(self, mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The elements of a tensor."""
        return mask.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@dataclass(slots=True)
class WrittenParts:
    """Of one graph: its memory of before of which it has written over a part first."""

    known: dict[int, _Parts | None] = field(default_factory=dict)  # None: not to be told apart
    goes_on: set[int] = field(default_factory=set)  # memory of which it reads what it writes only behind that

    def reads(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are read, as they are now."""
        for tensor in tensors:
            if (parts := self._of(tensor)) is not None:
                left = ~parts.of(parts.over, tensor)
                if 2 * int(left.sum()) > left.numel():  # corners of a padded field are read with a border, and no more
                    parts.of(parts.read, tensor).logical_or_(left)

    def writes(self, tensors: Iterable[torch.Tensor], first: set[int], *, over: bool) -> None:
        """These are written, ``over`` what was there; ``first``: memory that was not met before."""
        for tensor in tensors:
            key, storage = storage_key(tensor), tensor.untyped_storage()
            if key in first and key not in self.known:
                count, is_part = storage.nbytes() // tensor.itemsize, tensor.nbytes < storage.nbytes()
                told = over and is_part and count <= _MOST
                made = [torch.zeros(count, dtype=torch.bool) for _ in range(2)] if told else []
                self.known[key] = _Parts(tensor.itemsize, *made) if told else None
            if (parts := self._of(tensor)) is None:
                continue
            if bool(parts.of(parts.read, tensor).any()):
                self.goes_on.add(key)
                self.known[key] = None
            elif over:
                parts.of(parts.over, tensor).fill_(True)

    def _of(self, tensor: torch.Tensor) -> _Parts | None:
        key = storage_key(tensor)
        parts = self.known.get(key)
        if parts is not None and parts.size != tensor.itemsize:
            self.known[key] = parts = None
        return parts
