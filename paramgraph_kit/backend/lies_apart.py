"""Whether inputs lie apart in memory, or share it by storages that do not know of one another, as those of DLPack.

A trace of a function that writes takes such inputs for independent ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import torch


def _spans(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Where each storage begins and ends, and which it is; those without memory left out."""
    storages = {each._cdata: each for each in [x.untyped_storage() for x in tensors if not x.is_meta]}
    spans = [(each.data_ptr(), each.nbytes(), own) for own, each in storages.items()]
    return sorted([(first, first + size, own) for first, size, own in spans if size])


class LiesApart:
    """Asks it of tensors that are given to each call, beside ``static`` ones, which are looked at once."""

    def __init__(self, static: Sequence[torch.Tensor]) -> None:
        spans = _spans(static)
        self._apart = _disjoint(spans)
        self._firsts, self._ends = [first for first, _, _ in spans], [end for _, end, _ in spans]
        self._owns = [own for _, _, own in spans]

    def __call__(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether all that shares memory shares a storage."""
        spans = _spans(given)
        return self._apart and _disjoint(spans) and not any(self._meets(*span) for span in spans)

    def _meets(self, first: int, end: int, own: int) -> bool:
        before = bisect_left(self._firsts, end) - 1
        return before >= 0 and self._ends[before] > first and self._owns[before] != own


def _disjoint(spans: Sequence[tuple[int, int, int]]) -> bool:
    return all(end <= after for (_, end, _), (after, _, _) in pairwise(spans))
