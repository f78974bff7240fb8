"""What is told of one line goes with what is told of others: of a line that it follows, or that has it in its block."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from paramgraph_kit.trace.model import Failure

_READ_AT = re.compile(r", line (\d+)\)$")
_IN_PLACE = re.compile(r"(`for [^`]+`) in place of line (\d+)\b")
_BEHIND = re.compile(r"behind (?:each|the) launch")
_WITH = "goes behind each launch, with line {}, which reads"


def agreed(told: Sequence[Failure], generic: Sequence[str]) -> list[Failure]:
    """The same; ``generic`` are words of a line that follows what is read, whatever becomes of that."""
    return [_agreed(each, told, generic) for each in told]


def _agreed(failure: Failure, told: Sequence[Failure], generic: Sequence[str]) -> Failure:
    at = failure.frame
    head, _, said = failure.fix.partition("\nafter   ")
    if at is None or _IN_PLACE.search(said):
        return failure
    others = [each for each in told if each.frame is not None and each.frame.file == at.file and each is not failure]
    for each in others:
        named = _IN_PLACE.search(each.fix)
        if named and each.frame is not None and int(named[2]) <= at.line < each.frame.line:
            text = named[1] if at.line == int(named[2]) else "goes with that loop"
            return replace(failure, fix=f"{head}\nafter   {text}, as told of line {each.frame.line}")
    if said not in generic:
        return failure
    read = _READ_AT.search(failure.message)
    lines = [each for each in others if read and each.frame is not None and each.frame.line == int(read[1])]
    if read and lines and all(_BEHIND.search(each.fix) and "stays" not in each.fix for each in lines):
        return replace(failure, fix=f"{head}\nafter   {_WITH.format(read[1])}")
    return failure
