"""Lines of a file that several have changed, each in places of its own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

Change = tuple[int, int, list[str]]


def merged(lines: Sequence[str], others: Sequence[Sequence[str]]) -> list[str] | None:
    """The lines with all changes that others have made; None where two have changed the same in other ways."""
    changes = list[Change]()
    for change in (each for other in others for each in _changes(lines, other)):
        if any(_has(each, change) for each in changes):
            continue
        changes = [each for each in changes if not _has(change, each)]
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
    found = list[Change]()
    for _, begin, end, first, last in (code for code in codes if code[0] != "equal"):
        text, size = list(other[first:last]), end - begin
        inserted = text[size:] if 0 < size < len(text) else []  # right behind a line that is another one
        found.append((begin, end, text[:size] if inserted else text))
        found += [(end, end, inserted)] if inserted else []
    return found


def _has(whole: Change, part: Change) -> bool:
    """Whether a change begins, or ends, with what another one does: lines beside it have changed as well."""
    (begin, end, text), (first, last, new) = whole, part
    if whole == part:
        return True
    from_begin = begin == first < last < end and text[: len(new)] == new
    return from_begin or (begin < first < last == end and bool(new) and text[-len(new) :] == new)


def _meet(one: Change, other: Change) -> bool:
    """Whether two take the same lines away, or one puts something into what the other takes away."""
    if one[0] == one[1] or other[0] == other[1]:
        inner, outer = (one, other) if one[0] == one[1] else (other, one)
        return outer[0] < inner[0] < outer[1]
    return max(one[0], other[0]) < min(one[1], other[1])
