"""Graphs of one pool, captured before, of which one is replayed that reads what another one makes only behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.trace.model import Failure

_Early = tuple[Place, CodeType | None, Collection[int]]


@dataclass(slots=True)
class ReplayOrder:
    """What is written to the inputs of graphs that nobody has replayed yet, and who reads their results."""

    _written: set[int] = field(default_factory=set)
    _early: dict[int, _Early] = field(default_factory=dict)  # by the maker: where it is read, and what it reads

    def wrote(self, key: int) -> None:
        """Something outside of all captures writes to memory."""
        self._written.add(key)
        self._early = {graph: each for graph, each in self._early.items() if key not in each[2]}  # made of another one

    def launched(
        self, one: Any, begun: CodeType | None, makers: Iterable[tuple[Any, Collection[int]]], place: Place
    ) -> list[Failure]:
        """A graph is replayed; ``makers``: those that make what it reads and were never replayed, with their inputs.

        Who lets one go a round ahead of the other replays it once ahead of the first round.
        """
        for maker, reads in makers:
            if not self._written.isdisjoint(reads) and _share(one, maker):
                self._early[id(maker)] = (place, begun, reads)
        if (early := self._early.pop(id(one), None)) is None:
            return []
        text = "this graph reads what another one of its pool makes of today's input, which is replayed behind it"
        failure = BY_ID["pool-order"].failure(text, early[0].frame_in(early[1]))
        line = failure.frame.text if failure.frame is not None else ""
        other = frame.text if (frame := place.frame_in(begun)) is not None else "the other one's replay()"
        return [replace(failure, fix=f"before  {line}\nafter   {other} ahead of this line")]


def _share(one: Any, other: Any) -> bool:
    with suppress(Exception):  # it may hold none any more
        return bool(one.pool() == other.pool())
    return False
