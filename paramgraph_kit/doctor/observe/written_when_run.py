"""Lines that change what the host holds by another name than it has: seen while a call more runs, line by line.

``seen = self.seen; seen.append(1)``, ``heapq.heappush(todo, row)``: no text of the source says what is written there.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import AMOUNTS
from paramgraph_kit.doctor.observe.effects import effect
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.source_lines import frame_at, written_at
from paramgraph_kit.doctor.restore.classes import global_names
from paramgraph_kit.doctor.restore.holder import Change, Holder
from paramgraph_kit.driver.files import display_name, is_library
from paramgraph_kit.trace.model import Failure

_SIZED = (list, dict, set, deque)
_CALLS = 2
MOST = 20_000  # lines that are looked at


def problems(caller: Caller, base: Call, codes: list[CodeType], told: Collection[Failure]) -> list[Failure]:
    """What is told of such a line, where no other problem is."""
    found = [f for f in _given_unseen(caller, base, codes, told) if f.frame not in {each.frame for each in told}]
    own = {name for function in caller.state.functions for name in global_names(function.__code__)}
    moved = [c for change in base.changes for c in change.entries() if _counts(c, own)]
    silent = [c for c in moved if written_at(c, codes) is None]
    if not silent or base.ended is not None:
        return found
    known = {(f.frame.file, f.frame.line) for f in told if f.frame}
    held = caller.state.read()
    try:
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            found += [
                f for f in _of(caller, base, silent, own) if f.frame and (f.frame.file, f.frame.line) not in known
            ]
    finally:
        caller.state.set_to(held)
    return list({f.frame: f for f in found}.values())


def _given_unseen(caller: Caller, base: Call, codes: list[CodeType], told: Collection[Failure]) -> Iterator[Failure]:
    """Iterators of numbers of which these calls show nothing, and what they decide later no replay asks for.

    They have given one all the time, or others of which no told line knows: ``n = next(self.ticks)``, then ``n // 50``.
    """
    moved = {change.name for change in base.changes if change.kind == "iterator"}
    for holder in caller.state.holders:
        given: Any = getattr(holder.target, "given", ()) if holder.kind == "iterator" and holder.name in moved else ()
        if len(given) < _CALLS or not all(map(_is_plain, given)):
            continue
        alike = all(each == given[0] for each in given)
        for code, line in _asking(holder.target, codes):
            if alike:
                text = f"{holder.name} has given {given[0]!r} in each of these calls, and no replay asks it"
                yield BY_ID["scalar-frozen"].failure(text, frame_at(code, line))
            elif all(map(_is_numbers, given)) and not _shows(code, line, told):
                text = f"{holder.name} has given {given[-2]}, then {given[-1]}, and no replay asks it"
                yield BY_ID["host-counter"].failure(text, frame_at(code, line))


def _asking(iterator: Any, codes: Collection[CodeType]) -> Iterator[tuple[CodeType, int]]:
    """The first line of the user's that has asked an iterator for more."""
    files = {code.co_filename for code in codes}
    found = ((code, line) for (file, line), code in iterator.asked.items() if file in files)
    yield from islice(found, 1)


def _is_numbers(value: Any) -> bool:
    """Whether it is a number, or some in a tuple, as ``enumerate`` gives them."""
    parts = value if type(value) is tuple and value else (value,)
    return all(type(each) in (int, float) for each in parts)


def _shows(code: CodeType, line: int, told: Collection[Failure]) -> bool:
    """Whether a line that is told has what an iterator gave, or a name that its statement gives a value."""
    within = [n for n in nodes_of(code) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)]
    statement = max(within, key=lambda n: n.lineno, default=None)
    if statement is None:
        return True
    given = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    given |= {n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    lines = {f.frame.line for f in told if f.frame and f.frame.file == display_name(code.co_filename)}
    reads = (n for n in nodes_of(code) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load))
    return line in lines or any(last_name(n) in given and n.lineno in lines for n in reads)


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a text, or a row of such."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in (int, float, bool, str)


def _of(caller: Caller, base: Call, silent: Collection[Change], own: Collection[str]) -> Iterator[Failure]:
    caller.state.set_to(base.before)
    names = {change.name for change in silent}
    holders = [h for h in caller.state.holders if not h.of_torch and (h.kind in _OBJECTS or h.name in names)]
    watch = _Lines(holders)
    before = sys.gettrace()
    sys.settrace(watch.enter)
    try:
        caller.call(caller.args, caller.kwargs, drawing=base.number)
    finally:
        sys.settrace(before)
    for holder, then, now, code, line in watch.found:
        if holder.kind in _OBJECTS:
            parts = [Change("attribute", n, then.get(n), now.get(n), holder.name) for n in now if n in names]
        else:
            parts = [Change(holder.kind, holder.name, then, now, entry=holder.entry)]
        for change in parts:
            failure = (
                effect(change, frame_at(code, line)) if _counts(change, own) and change.before != change.after else None
            )
            if failure is not None:
                yield failure


_OBJECTS = ("attributes", "slots", "class")


def _counts(change: Change, own: Collection[str]) -> bool:
    """Whether a number has moved, or something has more or fewer than before; a library's own names are its own.

    What begins with ``_`` is the user's where a function of theirs says it: ``return self._log`` of a property.
    """
    if change.kind == "iterator" or (
        change.name.startswith("_") and "__" not in change.name and change.name not in own
    ):
        return False
    if type(change.after) in AMOUNTS and type(change.before) in AMOUNTS:
        return True
    both = isinstance(change.after, _SIZED) and isinstance(change.before, _SIZED)
    return both and (len(change.after) != len(change.before) or _has_other_numbers(change.before, change.after))


def _has_other_numbers(then: Any, now: Any) -> bool:
    pairs = [(then[k], now.get(k)) for k in then] if isinstance(then, dict) else list(zip(then, now, strict=False))
    return any(type(a) in (int, float) and type(b) in (int, float) and a != b for a, b in pairs)


@dataclass(slots=True)
class _Lines:
    """Which line of the user's ran when something was changed."""

    holders: list[Holder]
    held: list[Any] = field(init=False)
    found: list[tuple[Holder, Any, Any, CodeType, int]] = field(default_factory=list)
    at: tuple[CodeType, int] | None = None
    seen: int = 0

    def __post_init__(self) -> None:
        self.held = [holder.read() for holder in self.holders]

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Whether a function's lines are looked at."""
        if is_library(frame.f_code.co_filename):
            return None
        self.look(frame, event, arg)
        return self.look

    def look(self, frame: FrameType, event: str, arg: Any) -> Any:
        """What has changed since the line before."""
        self.seen += 1
        if self.seen < MOST:
            for number, holder in enumerate(self.holders) if self.at is not None else ():
                if not holder.is_same(self.held[number]):
                    now = holder.read()
                    self.found.append((holder, self.held[number], now, *self.at))  # type: ignore[misc]
                    self.held[number] = now
        at: FrameType | None = frame
        if event == "return":  # what its line's rest does is the caller's: `self.log.append(y)` of a property
            at = frame.f_back
            while at is not None and is_library(at.f_code.co_filename):
                at = at.f_back
        self.at = (at.f_code, at.f_lineno) if at is not None else self.at
        return self.look
