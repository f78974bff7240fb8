"""Numbers that are tensors now and looked up by their hash, as keys of a table: a tensor is found in none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.driver.files import is_library_code

LOOKED_UP = "how often a table is asked for a tensor of one number, as 0 or 1"
_hash: Callable[[torch.Tensor], int] = torch.Tensor.__hash__


class LookedUp:
    """While it lasts it is noted whether code of the user's asks for the hash of a tensor of one number.

    ``table.get(epoch, 1.0)`` gives 1.0 of each such tensor, whatever its value, and nothing fails. The entries may be
    far from what a trial comes to, so that equal results are no proof.
    """

    def __init__(self) -> None:
        self._asked, self._began = False, False

    def __enter__(self) -> None:
        self._began = True
        torch.Tensor.__hash__ = self._noted  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        torch.Tensor.__hash__ = _hash  # type: ignore[method-assign]

    def seen(self) -> dict[str, list[Any]]:
        """Whether it was asked for; nothing where nobody looked."""
        return {LOOKED_UP: [self._asked]} if self._began else {}

    @property
    def _noted(self) -> Any:
        def noted(tensor: torch.Tensor) -> int:
            if not self._asked and tensor.dim() == 0:
                frame = sys._getframe(1)
                self._asked = not is_library_code(frame.f_code, frame.f_globals)
            return _hash(tensor)

        return noted
