"""Copies to an input ahead of a replay that the graph writes over: the copy to it was captured, too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.trace.model import Failure

_SAID = "it is captured, so that each replay writes what was copied at the capture over what {} copies"
_FIX = "before  {line}\nafter   {line}, ahead of the capture and not in it: {at} copies what the replay is to read"


@dataclass(frozen=True, slots=True)
class _Copy:
    source: int
    at: Place


@dataclass(slots=True)
class CopiedOver:
    """Of one graph: memory that it copies to ahead of all else, and what calls have copied there since its replay."""

    inside: dict[int, _Copy] = field(default_factory=dict)
    ahead: dict[int, _Copy] = field(default_factory=dict)
    found: list[tuple[_Copy, _Copy]] = field(default_factory=list)

    def captures(self, target: int, source: int, at: Place) -> None:
        """Its first operation with all of this memory copies something of before there."""
        self.inside[target] = _Copy(source, at)

    def runs(self, read: Collection[int], target: int, source: int, at: Place) -> None:
        """An operation outside of all captures; ``target``: what it copies to as a whole, or 0."""
        for key in [key for key in self.ahead if key in read]:
            del self.ahead[key]  # somebody else wanted it
        if target in self.inside:
            self.ahead[target] = _Copy(source, at)

    def launched(self, since: Collection[int]) -> None:
        """It is replayed; ``since``: memory that was written since its latest replay."""
        for key, copied in self.ahead.items():
            if self.inside[key].source not in since:
                self.found.append((self.inside[key], copied))
        self.ahead.clear()

    def failures(self, given: Collection[int]) -> Iterator[Failure]:
        """What calls copy in vain; ``given``: memory of arguments, which is another one at each call."""
        for inside, ahead in self.found:
            frame, line = inside.at.frame(), ahead.at.frame()
            if (inside.source != ahead.source or inside.source in given) and frame is not None and line is not None:
                fix = _FIX.format(line=frame.text, at=f"line {line.line}")
                failure = BY_ID["stale-input"].failure(_SAID.format(f"line {line.line}"), frame)
                yield replace(failure, fix=fix)
