"""All that warm-ups of own captures leave moved: states, statistics and random numbers, as seen or as read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from paramgraph_kit.doctor.observe.captured_flow import CapturedFlow, tensors_of, written_and_read
from paramgraph_kit.doctor.observe.drawn_ahead import DrawnAhead, drawn_as_read
from paramgraph_kit.doctor.observe.graphed_ahead import GraphedAhead
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.doctor.observe.warmed_up import WrittenAhead
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.generators import generator_of


class WarmUps:
    """All of one examination."""

    def __init__(self, flow: CapturedFlow) -> None:
        self._flow, self._drawn, self._graphed = flow, DrawnAhead(), GraphedAhead()
        self._read: set[int] = set()  # graphs of before whose lines were read
        self._told: dict[str, None] = {}
        self.begin()

    def begin(self) -> None:
        """A call begins, for which all states are put back."""
        self._drawn.begin()
        self._graphed.begin()
        self._flow.ahead = self._ahead = WrittenAhead()

    def forget(self) -> None:
        """What was told of the calls of before is told anew."""
        self._told.clear()

    def runs(self, op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> Any:
        """An operation is about to run outside of all captures; the generator of the program's that it draws from."""
        if op.written and not _only_reads(op, args, kwargs):
            written, _ = written_and_read(op, args, kwargs)
            given = tensors_of((args, [*kwargs.values()]))
            self._ahead.wrote(op.name, (t for t in given if storage_key(t) in written), place)
        generator = generator_of(kwargs.get("generator"))
        if generator is not None or op.random:
            self._drawn.draws(generator, place)
        return generator

    def captures(self, graph: object, op: Operation, args: tuple[Any, ...], kwargs: Any, place: Place) -> None:
        """An operation is captured, which may draw."""
        self._drawn.captures(graph, op, args, kwargs, place)

    def launched(self, graph: object, regions: Iterable[Region], before: bool) -> None:
        """A graph is replayed, perhaps for the first time; ``before``: nobody has seen its capture."""
        own = [region for region in regions if region.graph is graph]
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            self._told |= dict.fromkeys(self._drawn.launched(graph, own))
        if not before:
            with suppress(Exception):
                self._told |= dict.fromkeys(self._ahead.at_launch(graph, own))
        elif id(graph) not in self._read:
            self._read.add(id(graph))
            for region in own:
                with suppress(Exception):
                    self._told |= dict.fromkeys(drawn_as_read(region))

    def graphed(self, graph: object, regions: Iterable[Region], before: bool) -> None:
        """The same for a graph of torch's ``make_graphed_callables``."""
        for region in (each for each in regions if each.graph is graph):
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                told = self._graphed.as_read(region) if before else self._graphed.seen(region, self._ahead, self._drawn)
                self._told |= dict.fromkeys(told)

    def leaves(self, written: Collection[int]) -> None:
        """Its states are as a call leaves them; ``written``: memory that its lines have written."""
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            self._told |= dict.fromkeys(self._graphed.leaves(written))

    def notes(self, otherwise: Iterable[str] = ()) -> list[str]:
        """What to know of them, or else of what else a warm-up moves."""
        return [*self._told] or [*otherwise]

    def program_notes(self, regions: Iterable[Region]) -> list[str]:
        """The same of a program that captures in each of its calls, also of captures that it does not replay."""
        return [*dict.fromkeys([*self._ahead.notes(regions), *self._told])]


def _only_reads(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether statistics, which an operation may write, are as they were: it evaluates."""
    given = {**dict(zip(op.names, args, strict=False)), **kwargs}
    return "batch_norm" in op.name and given.get("training") is False
