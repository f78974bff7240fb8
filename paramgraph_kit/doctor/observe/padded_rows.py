"""What lines fill with indices ahead of a replay, and what the rows behind it hold that the input does not have."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch

from paramgraph_kit.doctor.observe.filled_cuts import cut_in, line_at
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import Keeper, storage_key

PLAIN = -1
_MOST = 1 << 20  # indices
_Writes = Collection[tuple[torch.Tensor, Place]]


@dataclass(frozen=True, slots=True)
class Padded:
    """A line that fills the first rows of indices, and the numbers of the rows behind it."""

    place: Place
    cut: ast.Subscript
    rows: set[int]
    behind: set[int]
    key: int  # of their memory
    filled: bool  # something fills the rows behind, too


class PaddedRows:
    """Those lines, and other numbers behind them where that is tried."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], Padded] = {}
        self.moves = PLAIN  # to which of the possible numbers the rows behind are moved
        self.others: list[tuple[torch.Tensor, torch.Tensor]] = []  # states, and which of their elements are moved

    def launched(self, written: Iterable[_Writes], keeper: Keeper) -> None:
        """A graph is replayed now, with what was written since the one before."""
        for writes in written:
            ends = [int(part.storage_offset()) + part.numel() for part, _ in writes]
            for part, place in writes:
                self._part(part, place, max(ends), keeper)
        for state, chosen in self.others:
            keeper.before_write(state)
            state.copy_(torch.where(chosen, state + 1, state))
        self.others = []  # once a call: the next replay goes on from there

    def _part(self, part: torch.Tensor, place: Place, end: int, keeper: Keeper) -> None:
        elements = part.untyped_storage().nbytes() // part.element_size()
        is_index = not part.is_floating_point() and not part.is_complex() and part.dtype is not torch.bool
        is_first = part.storage_offset() == 0 and part.is_contiguous() and 0 < part.numel() < elements
        cut = cut_in(place, alone=False) if is_index and is_first and elements <= _MOST else None
        if cut is not None:
            whole = torch.empty(0, dtype=part.dtype, device=part.device).set_(part.untyped_storage())
            self._look(whole[:elements], part.numel(), end > part.numel(), place, cut, keeper)

    def _look(
        self, whole: torch.Tensor, rows: int, filled: bool, place: Place, cut: ast.Subscript, keeper: Keeper
    ) -> None:
        if self.moves < 0:
            held = whole.tolist()
            first, behind = set(held[:rows]), set(held[rows:])
            self.found[line_at(place)] = Padded(place, cut, first, behind, storage_key(whole), filled)
        elif padded := self.found.get(line_at(place)):
            numbers = padded.rows | {*range(max(padded.rows) + 1)}  # its own first, which are surely possible
            free = sorted(numbers - padded.behind, key=lambda n: (n not in padded.rows, n))
            if self.moves < len(free):
                keeper.before_write(whole)
                whole[rows:] = free[self.moves]
