"""Gradients that a step adds to in place: the same tensors at each call, so that one look at all of them will do."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch

from paramgraph_kit.capture.pair import Captured, Kind
from paramgraph_kit.driver.native.tensors import Gradients, Looks
from paramgraph_kit.step.cells import Cell


class Entering:
    """What cells hold as a step is entered, as far as its launch reads it."""

    def __init__(self, captured: Captured, arguments: int, cells: Sequence[Cell]) -> None:
        self._placed: list[tuple[int, Cell]] = []
        self._count = 0
        for cell in cells:
            self._placed.append((self._count, cell))
            self._count += len(cell.reads)
        steady = {id(cell): place for place, cell in self._placed if _stays(captured, cell, arguments + place)}
        self._places = list(steady.values())
        self._rest = [(place, cell) for place, cell in self._placed if id(cell) not in steady]
        self._gradients = Gradients([cell.holder.target for _, cell in self._placed if id(cell) in steady])
        self._before: list[Any] = []
        self._looks: Looks | None = None

    @property
    def written(self) -> list[Cell]:
        """The cells that a launch has to write: others hold already what it leaves there."""
        return [cell for _, cell in self._rest]

    def now(self) -> list[torch.Tensor] | None:
        """The tensors, or None where a cell holds what the graph was not captured for."""
        found: list[Any] = [None] * self._count
        quick = self._looks is not None and self._gradients.are(self._before) and self._looks.same()
        if quick:
            for place, tensor in zip(self._places, self._before, strict=True):
                found[place] = tensor
        for place, cell in self._rest if quick else self._placed:
            if (held := cell.entering()) is None:
                return None
            found[place : place + len(cell.reads)] = [held[n] for n in cell.reads]
        if not quick and self._places:
            self._note([found[place] for place in self._places])
        return found

    def _note(self, tensors: list[torch.Tensor]) -> None:
        """Once they are the same twice in a row, they are looked at together."""
        same = len(self._before) == len(tensors) and all(map(is_, tensors, self._before))
        self._looks = Looks(tensors) if same else None
        self._before = tensors


def _stays(captured: Captured, cell: Cell, position: int) -> bool:
    """Whether a cell is a gradient that the launch takes at ``position`` and leaves where it is."""
    if cell.holder.kind != "gradient" or cell.reads != [0] or len(cell.exits) != 1 or cell.exits[0] is None:
        return False
    output = captured.outputs[cell.exits[0]]
    return output.kind is Kind.ARGUMENT and output.source == position
