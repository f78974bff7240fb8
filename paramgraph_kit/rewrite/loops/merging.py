"""Lines of a file that several have changed, each in places of its own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

Change = tuple[int, int, list[str]]


def merged(lines: Sequence[str], others: Sequence[Sequence[str]]) -> list[str] | None:
    """The lines with all changes that others have made; None where two have changed the same in other ways."""
    changes = list[Change]()
    for change in (each for other in others for each in _changes(lines, other)):
        if change in changes:
            continue
        if any(_meet(change, each) for each in changes):
            return None
        changes.append(change)
    found, at = list[str](), 0
    for begin, end, text in sorted(changes, key=lambda one: (one[0], one[1] > one[0])):
        found += [*lines[at:begin], *text]
        at = end
    return [*found, *lines[at:]]


def _changes(lines: Sequence[str], other: Sequence[str]) -> list[Change]:
    codes = difflib.SequenceMatcher(None, lines, other, False).get_opcodes()
    return [(begin, end, list(other[first:last])) for kind, begin, end, first, last in codes if kind != "equal"]


def _meet(one: Change, other: Change) -> bool:
    """Whether two take the same lines away, or one puts something into what the other takes away."""
    if one[0] == one[1] or other[0] == other[1]:
        inner, outer = (one, other) if one[0] == one[1] else (other, one)
        return outer[0] < inner[0] < outer[1]
    return max(one[0], other[0]) < min(one[1], other[1])
