"""Graphs of one pool, captured before: one reads what another makes only behind it, or writes over its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.one_graph import Memory, OneGraph
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.trace.model import Failure

_Early = tuple[Place, CodeType | None, Collection[int]]
_MOST_BYTES = 2**24  # of a result that is looked at


@dataclass(slots=True)
class ReplayOrder:
    """What is written to the inputs of graphs that nobody has replayed yet, and who reads their results."""

    _written: set[int] = field(default_factory=set)
    _early: dict[int, _Early] = field(default_factory=dict)  # by the maker: where it is read, and what it reads
    _held: dict[int, tuple[Memory, torch.Tensor, Place]] = field(default_factory=dict)  # ahead of another's replay

    def wrote(self, key: int) -> None:
        """Something outside of all captures writes to memory."""
        self._written.add(key)
        self._held.pop(key, None)
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

    def written_over(self, one: OneGraph) -> Place | None:
        """Where a graph was replayed behind which a result of another one holds something else."""
        for key in one.memory.keys() & self._held.keys():
            memory, held, place = self._held[key]
            with suppress(RuntimeError):
                if (now := _contents(memory)) is not None and not torch.equal(now, held):
                    return place
        return None

    def over(self, one: OneGraph, known: Iterable[OneGraph], place: Place) -> None:
        """A graph is replayed next: whose results it writes over, as they lie there, or as their contents tell then.

        Of a graph of before nobody knows what it writes between its inputs and its results.
        """
        for other in (own for own in known if own is not one):
            other.spoiled = other.spoiled or self.written_over(other)
            if other.holds(one.memory.values()):
                other.spoiled = place
            if one.before and other.before and other.launched and not other.by_torch and _share(one.graph, other.graph):
                for key in other.memory.keys() - one.reads.keys() - one.filled - self._held.keys():
                    with suppress(RuntimeError):  # of a tensor without memory
                        if (held := _contents(other.memory[key])) is not None:
                            self._held[key] = other.memory[key], held, place
        for key in one.memory:
            self._held.pop(key, None)


def _contents(memory: Memory) -> torch.Tensor | None:
    """What a result holds now, if it is there and small enough."""
    if memory.storage.expired() or memory.size > _MOST_BYTES:
        return None
    storage = torch.UntypedStorage._new_with_weak_ptr(memory.storage.cdata)
    if storage is None:
        return None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().clone()


def _share(one: Any, other: Any) -> bool:
    with suppress(Exception):  # it may hold none any more
        return bool(one.pool() == other.pool())
    return False
