"""Which streams would be part of a capture: the rules of fork and join, followed while code runs eagerly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.doctor.observe.places import Place


@dataclass(slots=True)
class _Lane:
    """A stream that the capture has reached."""

    count: int = 0  # operations so far
    knows: dict[int, int] = field(default_factory=dict)  # how much of each stream it waits for
    last: Place | None = None


class Forks:
    """Follows streams by their raw numbers; ``origin`` is the one that captures."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self._lanes = {origin: _Lane()}
        self._events: dict[int, dict[int, int]] = {}  # recorded in the capture: what waiting for it brings
        self._outside: set[int] = set()  # events recorded where nothing is captured
        self._keep: list[object] = []  # ids of events stay theirs

    def work(self, stream: int, place: Place) -> bool:
        """An operation is put on a stream; returns whether the capture would have it."""
        lane = self._lanes.get(stream)
        if lane is None:
            return False
        lane.count += 1
        lane.knows[stream] = lane.count
        lane.last = place
        return True

    def work_of_autograd(self, stream: int) -> None:
        """The same in a backward pass: the engine forks to the streams of the forward pass and joins them."""
        lane = self._lanes.setdefault(stream, _Lane())
        lane.count += 1
        for known in (lane.knows, self._lanes[self.origin].knows):
            known[stream] = lane.count

    def record(self, event: object, stream: int) -> None:
        """An event is recorded on a stream."""
        self._keep.append(event)
        self._events.pop(id(event), None)
        self._outside.discard(id(event))
        lane = self._lanes.get(stream)
        if lane is None:
            self._outside.add(id(event))
        else:
            self._events[id(event)] = dict(lane.knows)

    def wait(self, event: object, stream: int) -> bool:
        """A stream waits for an event; returns whether the capture would refuse that."""
        known = self._events.get(id(event))
        lane = self._lanes.get(stream)
        if known is None:
            return lane is not None and (id(event) in self._outside or _recorded_before(event))
        if lane is None:
            lane = self._lanes[stream] = _Lane()
        for other, count in known.items():
            lane.knows[other] = max(lane.knows.get(other, 0), count)
        return False

    def reached(self, stream: int) -> bool:
        """Whether the capture would have what runs on a stream now."""
        return stream in self._lanes

    def captured(self, event: object) -> bool:
        """Whether an event was recorded in what would be the capture."""
        return id(event) in self._events

    def recorded(self, event: object) -> bool:
        """Whether an event was recorded at all."""
        return self.captured(event) or id(event) in self._outside or _recorded_before(event)

    def unjoined(self) -> list[Place]:
        """The last operation of every stream that nothing waits for at the end."""
        knows = self._lanes[self.origin].knows
        return [
            lane.last
            for stream, lane in self._lanes.items()
            if lane.last is not None and knows.get(stream, 0) < lane.count
        ]


def _recorded_before(event: Any) -> bool:
    """Whether an event that the call has not recorded was recorded before it; an external one may be waited for."""
    if getattr(event, "external", False):
        return False
    made = vars(event).get("created") if hasattr(event, "__dict__") else None
    return bool(getattr(event, "cuda_event", 0) if made is None else made)  # CUDA's is made by the first record
