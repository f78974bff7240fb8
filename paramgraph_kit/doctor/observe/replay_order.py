"""Graphs of one pool, captured before: one reads what another makes only behind it, or writes over its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.one_graph import Memory, OneGraph, bytes_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.pool_words import with_pools_of_their_own
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure, Frame

_Early = tuple[Place, CodeType | None, Collection[int]]
LOST = "the graph that is replayed here writes over what another one of its pool has made and a third one reads"
_MOST_BYTES = 2**24  # of a result that is looked at


@dataclass(slots=True)
class ReplayOrder:
    """What is written to the inputs of graphs that nobody has replayed yet, and who reads their results."""

    _written: set[int] = field(default_factory=set)
    _early: dict[int, _Early] = field(default_factory=dict)  # by the maker: where it is read, and what it reads
    _replays: int = 0
    _told: dict[CodeType | None, Frame | None] = field(default_factory=dict)  # by where a graph was captured that reads
    _held: dict[int, tuple[Memory, torch.Tensor, Place]] = field(default_factory=dict)  # ahead of another's replay
    # Where it is told that a result is written over: by which replay, and which one gave that result.
    spoils: dict[Frame | None, tuple[Place, Place | None]] = field(default_factory=dict)

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

    def ahead(self, one: OneGraph, known: Iterable[OneGraph], takes: Collection[int], place: Place) -> list[Failure]:
        """A graph is replayed that reads what another one makes, which has never been replayed; ``takes``: that."""
        makers = [own for own in known if own is not one and not own.memory.keys().isdisjoint(takes)]
        if not any(not own.replayed and not own.by_torch for own in makers):
            return []
        text = "this graph reads what another one makes, which has not been replayed yet"
        failure = BY_ID["pool-order"].failure(text, place.frame_in(one.begun))
        line = failure.frame.text if failure.frame is not None else ""
        fix = f"before  {line}\nafter   the other one's replay() ahead of this line, in the order of their captures"
        return [replace(failure, fix=fix)]

    def lost(
        self, one: OneGraph, known: Iterable[OneGraph], unread: set[int], written: Mapping[int, int], at: Place
    ) -> list[Failure]:
        """A graph is replayed that reads what another one of its pool makes, over which a third one has written since.

        Both captures had that memory, as what was made first was gone by then; ``unread``: what this one writes over
        itself; ``written``: memory that was written outside of all captures, and as the how manieth.
        """
        self._replays += 1
        one.order, one.last = self._replays, at
        graphs = [own for own in known if own is not one and own.replayed]
        for maker in graphs if (takes := one.takes() - unread) else ():
            makes = maker.makes()
            for taken in (makes[key] for key in makes.keys() & takes):
                fed = max((written.get(key, 0) for key, m in maker.memory.items() if m.first == taken[0]), default=0)
                for other in (own for own in graphs if own.order > maker.order and own.at >= fed):
                    if other.last is not None and _meet(taken, other.makes().values()):
                        frame = other.last.frame_in(other.begun)
                        # Pools of their own mend them all, so that the first one is enough.
                        is_told = self._told.setdefault(one.begun, frame) != frame
                        return [] if is_told else [BY_ID["pool-order"].failure(LOST, frame)]
        return []

    def written_over(self, one: OneGraph) -> Place | None:
        """Where a graph was replayed behind which a result of another one holds something else."""
        for key in one.memory.keys() & self._held.keys():
            memory, held, place = self._held[key]
            with suppress(RuntimeError):
                if (now := _contents(memory)) is not None and not torch.equal(now, held):
                    return place
        return None

    def read_late(self, own: OneGraph, spoiled: Place, regions: Iterable[Region]) -> Failure:
        """A graph's result is read behind a replay that writes over it."""
        text = "another graph of its pool is replayed here, and writes to its result, which is read after that"
        failure = with_pools_of_their_own(BY_ID["pool-order"].failure(text, spoiled.frame_in(own.begun)), regions)
        self.spoils[failure.frame] = spoiled, own.last
        return failure

    def read_unnamed(
        self,
        tensors: Iterable[torch.Tensor],
        known: Collection[OneGraph],
        written: Mapping[int, int],
        regions: Collection[Region],
    ) -> Iterator[Failure]:
        """The same of tensors that no line of a capture of before names: only the device knows who has made them.

        ``written``: as in ``lost``.
        """
        makers = [own for own in known if own.before and own.pooled and own.replayed and not own.by_torch]
        for tensor in tensors if makers and len(known) > 1 else ():
            number, fed = driver().pool_number(tensor), written.get(storage_key(tensor), 0)
            for maker, taken in ((own, own.makes()[number]) for own in makers if number in own.makes()):
                later = [own for own in known if own.order > maker.order and own.at >= fed and own is not maker]
                for at in (own.last for own in later if _meet(taken, own.makes().values())):
                    if at is not None:
                        yield self.read_late(maker, at, regions)

    def without_kept(self, told: list[Failure]) -> list[Failure]:
        """The same without orders that a copy mends where a result is kept: it is taken ahead of the other graph."""
        kept = [at for f in told if f.code == "output-alias" and (at := f.frame) is not None]

        def is_late(spoiled: Place, given: Place | None) -> bool:
            # Of replays in one line of a loop each is followed by the line that keeps its result.
            own = {(code, line_of(code, at)) for code, at in given.stack} if given is not None else set()
            here = [(code, line_of(code, at)) for code, at in spoiled.stack]
            lines = [(display_name(c.co_filename), c.co_name, line) for c, line in here if (c, line) not in own]
            return any((at.file, at.function) == each[:2] and each[2] < at.line for at in kept for each in lines)

        late = {frame for frame, places in self.spoils.items() if is_late(*places)}
        return [f for f in told if f.code != "pool-order" or f.message == LOST or f.frame in late]

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


def _meet(one: tuple[int, int], others: Iterable[tuple[int, int]]) -> bool:
    return any(one[0] < first + size and first < one[0] + one[1] for first, size in others)


def _contents(memory: Memory) -> torch.Tensor | None:
    """What a result holds now, if it is there and small enough."""
    held = bytes_of(memory.storage) if memory.size <= _MOST_BYTES else None
    return None if held is None else held.cpu().clone()


def _share(one: Any, other: Any) -> bool:
    with suppress(Exception):  # it may hold none any more
        return bool(one.pool() == other.pool())
    return False
