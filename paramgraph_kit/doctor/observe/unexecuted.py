"""Results of a capture that were read ahead of its first replay: told where somebody sees what has come of that.

A warm-up of what is captured next reads them too, as where each layer has a graph; what it computes is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.trace.model import Failure


class Unexecuted:
    """Those of one examination."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, Failure]] = {}  # by memory, what it was computed from

    def read(self, tensors: Iterable[torch.Tensor]) -> list[Failure]:
        """What is told of tensors, if somebody sees them."""
        known = (self._of.get(storage_key(tensor)) for tensor in tensors) if self._of else ()
        return [each[1] for each in known if each is not None and not each[0].expired()]

    def computed(self, failures: list[Failure], made: Iterable[torch.Tensor]) -> None:
        """These were computed from such tensors."""
        for tensor in made:
            self._of[storage_key(tensor)] = storage_ref(tensor.untyped_storage()), failures[0]

    def ended(self) -> list[Failure]:
        """A call has ended: what is still there is somebody's."""
        held, self._of = self._of, {}
        return [failure for ref, failure in held.values() if not ref.expired()]
