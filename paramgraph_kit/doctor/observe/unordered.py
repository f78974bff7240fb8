"""Work on several streams around replays: what touches memory of a graph's on a stream that nothing orders with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.freed_for_others import FreedForOthers
from paramgraph_kit.doctor.observe.host_copies import HostCopies, current_at, streams_at, with_name
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.doctor.observe.refilled_early import RefilledEarly
from paramgraph_kit.trace.model import Failure

Stamp = tuple[int, int]  # a stream, and how much had been put on it
TAKES = "it takes memory, freed by now,"
_TITLE = "Streams do not wait for one another around a replay"
_CAUSE = "Streams run side by side: work of one may come before or after work of another, which does not wait for it."


class Order:
    """Which work is sure to be done before which other: what streams and the host wait for, as it comes."""

    def __init__(self) -> None:
        self._lanes: dict[int, dict[int, int]] = {}  # how much of each stream a stream waits for
        self._host: dict[int, int] = {}  # and the host, before all that it launches next
        self._asked: dict[int, int] = {}  # and those waits of it that somebody asked for
        self._events: dict[int, tuple[object, dict[int, int]]] = {}  # with the event, so that its id stays its own

    def work(self, stream: int) -> Stamp:
        """Something is put on a stream."""
        knows = self._lane(stream)
        knows[stream] = knows.get(stream, 0) + 1
        return stream, knows[stream]

    def record(self, event: object, stream: int) -> None:
        """An event is recorded on a stream."""
        self._events[id(event)] = event, dict(self._lane(stream))

    def wait(self, event: object, stream: int) -> None:
        """A stream waits for an event."""
        _learn(self._lane(stream), self._events.get(id(event), (event, {}))[1])

    def host_waits(self, *, stream: int | None = None, event: object = None, by_work: bool = False) -> None:
        """The host waits for a stream or an event; for all that there is without one; ``by_work``: nobody asked it."""
        lanes = [self._lane(lane) for lane in ([*self._lanes] if stream is None else [stream])]
        known = lanes if event is None else [self._events.get(id(event), (event, {}))[1]]
        for each in known:
            _learn(self._host, each)
            if not by_work:
                _learn(self._asked, each)

    def is_before(self, stamp: Stamp, stream: int) -> bool:
        """Whether what is put on a stream next waits for some work."""
        return self._lane(stream).get(stamp[0], 0) >= stamp[1]

    def latest(self, stream: int) -> Stamp:
        """What was put on a stream last."""
        return stream, self._lane(stream).get(stream, 0)

    def has_several(self) -> bool:
        """Whether there is more than one stream."""
        return len(self._lanes) > 1

    def is_done(self, stamp: Stamp) -> bool:
        """Whether the host has waited for some work."""
        return self._host.get(stamp[0], 0) >= stamp[1]

    def is_awaited(self, stamp: Stamp) -> bool:
        """Whether somebody asked the host to wait for some work."""
        return self._asked.get(stamp[0], 0) >= stamp[1]

    def is_recorded(self, stamp: Stamp) -> bool:
        """Whether an event is recorded behind some work, by which it can be waited for."""
        return any(knows.get(stamp[0], 0) >= stamp[1] for _, knows in self._events.values())

    def _lane(self, stream: int) -> dict[int, int]:
        knows = self._lanes.setdefault(stream, {})
        _learn(knows, self._host)
        return knows


class Unordered:
    """What one call does with memory of its graphs on streams that do not wait for one another."""

    def __init__(self) -> None:
        self.order = Order()
        self.hosts = HostCopies()
        self.freed = FreedForOthers()
        self.refilled = RefilledEarly()
        self.problems: list[Failure] = []
        self._written: dict[int, tuple[Stamp, Place]] = {}  # by memory, the latest
        self._read: dict[int, tuple[Stamp, Place]] = {}
        self._raced: dict[int, tuple[Place, Place]] = {}  # memory, and the line that has read too early for it
        self._learned: dict[int, dict[int, int]] = {}  # what streams wait for once they do what is told
        self._hosts = set[int]()  # memory of the host's
        self._replays: list[tuple[Stamp, Place, Collection[int], Collection[int]]] = []  # the latest of each graph

    def work(
        self, stream: int, read: Iterable[int], written: Iterable[int], place: Place, *, host: bool = False
    ) -> None:
        """An operation outside of all captures is put on a stream."""
        stamp = self.order.work(stream)
        read, written = set(read), set(written)
        for at, replay, inputs, results in self._replays:
            if self.order.is_before(at, stream):
                continue
            if not written.isdisjoint(inputs):
                self._tell(place, replay, "it writes to what the replay of line {} may still read")
            elif not read.isdisjoint(results):
                self._tell(place, replay, "it reads what the replay of line {} may still write")
            else:
                continue
            _learn(self._learned.setdefault(stream, {}), dict([at]))
        self._hosts = self._hosts | written if host else self._hosts - written
        latest = (self._written[key] for key in read - self._hosts if key in self._written)
        races = [(place, other) for at, other in latest if not self.order.is_before(at, stream)]
        race = next(iter(races), None) or next((self._raced[key] for key in read if key in self._raced), None)
        self._raced = {key: at for key, at in self._raced.items() if key not in written}
        self._raced |= dict.fromkeys(written, race) if race is not None else {}
        self._written |= dict.fromkeys(written, (stamp, place))
        self._read |= dict.fromkeys(read, (stamp, place))

    def takes(
        self,
        stream: int,
        given: Collection[torch.Tensor],
        filled: Collection[int],
        result: Any,
        device: str,
        place: Place,
    ) -> None:
        """The latest work on a stream was given this, has filled some of it by id, and has made that."""
        waits, latest = self._learned.get(stream, {}), self.order.latest(stream)
        for at, other in [*self.refilled.work(latest, given, filled, result, device, place, self.order, waits)]:
            self._tell(place, other, "it writes to what line {} may still read for a replay")
            _learn(self._learned.setdefault(stream, {}), dict([at]))
        for other in self.freed.work(latest, given, result, device, place, self.order, waits):
            used = next(streams_at(other), "") or current_at(other)
            line = f"at line {_line(other)}, ahead of that: `t.record_stream({used})` of each `t` of another stream's"
            words = f"{line} which it reads, or these are kept until the streams have joined"
            fix = f"before  {_text(other)}\nafter   {words}"
            self._tell(place, other, f"{TAKES} that line {{}} may still use", fix)

    def of_memory(self) -> list[Failure]:
        """What a graph has of these, too: memory that is taken again while another stream may still use it."""
        return [f for f in self.problems if TAKES in f.message]

    def launched(self, stream: int, inputs: Collection[int], results: Collection[int], place: Place) -> None:
        """A graph is replayed that reads, and writes, this memory."""
        for keys, latest, said in (
            (inputs, self._written, "it reads what line {} may still be writing"),
            (results, self._read, "it writes over what line {} may still be reading"),
        ):
            for at, other in (latest[key] for key in keys if key in latest):
                if not self.order.is_before(at, stream):
                    self._tell(place, other, said)
                    _learn(self._learned.setdefault(stream, {}), dict([at]))
        for early, other in dict.fromkeys(self._raced[key] for key in inputs if key in self._raced):
            self._tell(early, other, "it reads what line {} may still be writing")
        self.refilled.launched(inputs)
        stamp = self.order.work(stream)
        self._replays = [each for each in self._replays if each[3] is not results]
        self._replays.append((stamp, place, inputs, results))

    def _tell(self, place: Place, other: Place, said: str, fix: str = "") -> None:
        """Work at a place does not wait for other work; ``fix``: what mends it, where that is no wait."""
        text = said.format(_line(other) or "?")
        failure = BY_ID["work-elsewhere"].failure(f"{text}, on another stream: nothing waits for it", place.frame())
        fix = fix or f"before  {_text(place)}\nafter   {_wait(place, other)}"
        self.problems.append(replace(failure, title=_TITLE, cause=_CAUSE, fix=fix))


def _wait(place: Place, other: Place) -> str:
    """What has the stream of a line wait for that of another."""
    current = current_at(place)
    inside, waited = next(streams_at(place), ""), next(streams_at(other), "") or current
    if waited != current and place.user and other.user and place.user[0] is not other.user[0]:
        waited = f"the stream of line {_line(other)}, `{waited}` there"  # whose names mean nothing here
    fix = f"ahead of {'the `with`' if inside else 'this line'}: {inside or current}.wait_stream({waited})"
    if not inside and waited == current:  # the lines that name their streams are those that call these
        fix = f"behind line {_line(other)}: the stream of this line waits for that line's, `this.wait_stream(that)`"
        (around, name, _), (_, theirs, code) = _of_callers(place), _of_callers(other)
        if name and not theirs:
            fix = f"ahead of the `with` around line {around}, which calls this: {name}.wait_stream({current})"
        elif theirs and not name and place.user and place.user[0] is code:
            fix, waited = f"ahead of this line: {current}.wait_stream({theirs})", theirs
    return with_name(fix, inside, waited)


def _text(place: Place) -> str:
    frame = place.frame()
    return frame.text if frame is not None else ""


def _line(place: Place) -> int:
    return line_of(*place.user) if place.user is not None else 0


def _of_callers(place: Place) -> tuple[int, str, CodeType | None]:
    """The line that calls this in a ``with`` of a stream, what that stream is called there, and whose line that is.

    "" where none does.
    """
    for deep in range(len(place.stack) - 1, 0, -1):
        outer = Place(place.stack[:deep])
        if name := next(streams_at(outer), ""):
            return _line(outer), name, outer.user[0] if outer.user is not None else None
    return 0, "", None


def _learn(knows: dict[int, int], more: dict[int, int]) -> None:
    for stream, count in more.items():
        knows[stream] = max(knows.get(stream, 0), count)
