"""What stands behind a capture that fails: it is looked at while the fix of what failed is in place."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.driver.files import REWRITTEN, display_name
from paramgraph_kit.verbs._own_captures import head_of, headed, is_set_at

if TYPE_CHECKING:
    from paramgraph_kit.trace.model import Failure

_AROUND = ("output-alias", "stale-input", "scalar-frozen", "work-elsewhere", "parameter-rebound", "gradients-rebound")
_ALSO = ("learning-rate-frozen", "freed-input", "not-executed", "pool-order", "gradients-accumulate")


def behind_failed(
    diagnose: Callable[..., Diagnosis], what: Any, given: Any, found: Diagnosis, files: Iterable[str], limit_s: float
) -> None:
    """Tell what a program whose capture fails does around its replays; a note where nobody can know that yet."""
    from paramgraph_kit.doctor.known.catalogue import BY_ID
    from paramgraph_kit.doctor.observe.ended_ahead import FUNCTION
    from paramgraph_kit.doctor.observe.examine import NOT_REPLAYED
    from paramgraph_kit.doctor.observe.places import order_of
    from paramgraph_kit.doctor.observe.returned_inputs import NEEDS_COPY

    again, fix, tried = None, found.fix, dict[str, list[str]]()
    own = {display_name(file): file for file in files}
    with suppress(Exception):  # the fix is of the captured function, and the program has more around it
        if fix is not None and fix.diff:
            with fix.applied():
                again = diagnose(what, *given, limit_s, False, False)
                tried = {name: linecache.getlines(file + REWRITTEN) for name, file in own.items()}
    found.notes = tuple(note for note in found.notes if note != NOT_REPLAYED)
    known = {(f.code, f.frame) for f in found.failures}
    lines = {f.frame for f in found.failures}
    # Its capture may fail further, as where a part of the fix is only words; or the program does right behind it,
    # which takes what the function has returned before.
    if (
        again is None
        or NOT_REPLAYED in again.notes
        or any(f.code in BY_ID and BY_ID[f.code].category == FUNCTION for f in again.failures)
        or any(f.code not in (*_AROUND, *_ALSO) and f.frame in lines for f in again.failures)
    ):
        found.notes = (*found.notes, NOT_REPLAYED)
        return
    found.notes += tuple(each for each in again.notes if NEEDS_COPY in each and each not in found.notes)
    more = [f for f in again.failures if f.code in (*_AROUND, *_ALSO) and (f.code, f.frame) not in known]
    there = (
        f for f in (_as_it_is(each, own, tried) for each in more) if f is not None and (f.code, f.frame) not in known
    )
    every = [*found.failures, *there]
    every = [f for f in every if not is_set_at(f, (g for g in every if g is not f and g.code == f.code))]
    told = sorted(every, key=lambda f: order_of(f.frame))
    found.failures, (name, _, where) = tuple(told), head_of(found)
    found.heading = headed(name, told, where)


def _as_it_is(failure: Failure, own: dict[str, str], tried: dict[str, list[str]]) -> Failure | None:
    """The same at the program's own line, where that is not among those which are rewritten."""
    if (frame := failure.frame) is None:
        return None
    if (name := frame.file.removesuffix(REWRITTEN)) not in own:  # what was rewritten more than once is not among them
        return None
    lines = [line.strip() for line in linecache.getlines(own[name])]
    if name == frame.file:
        return failure if lines[frame.line - 1 : frame.line] == [frame.text] else None
    at = [number for number, line in enumerate(lines, 1) if line == frame.text]  # the lines above may be others
    then = [line.strip() for line in tried.get(name, ())]
    message, fix = (_renumbered(words, then, lines) for words in (failure.message, failure.fix))
    moved = replace(failure, message=message, fix=fix)
    return replace(moved, frame=replace(frame, file=name, line=at[0])) if len(at) == 1 else None


def _renumbered(words: str, tried: list[str], lines: list[str]) -> str:
    """Words that name lines of a file that is rewritten, with the numbers that these have in the program's own."""
    blocks = SequenceMatcher(None, tried, lines, autojunk=False).get_matching_blocks()

    def own(found: re.Match[str]) -> str:
        at = int(found[1]) - 1
        there = [block.b + at - block.a for block in blocks if block.a <= at < block.a + block.size]
        return f"line {there[0] + 1}" if there else f"{found[0]} of the rewritten file"

    return re.sub(r"\bline (\d+)\b", own, words)
