"""What a value that was read from the device decides: a call more in which it is another one, and what differs then.

``n = int(mask.sum())`` waits at its own line; ``tokens[:n]``, ``if n < limit:`` and ``count += n`` behind it are frozen
with it, which no two calls on the same tensors show. ``x * n`` is not told: it takes a tensor as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.doctor.observe import read_tests
from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.effects import effect
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.source_lines import lines_of, written_at
from paramgraph_kit.doctor.restore.holder import same
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.trace.model import Failure, Frame

READ = "where what is read from the device is another value"
SECONDS = 2.0  # that one call may take which is made again
MOST = 256  # entries of a tensor that is copied to the CPU
_WAITS = ("sync-item", "copy-to-cpu")
_FROZEN = ("size-frozen",)  # a number may stay on the device; branches are read from the source: `read_tests`
_LATER = ("size-frozen", "branch-frozen")  # where it has left another list, say
_PICKED = ("stale-input",)
_AROUND = ("/torch/_compile.py", "/torch/_dynamo/eval_frame.py")  # of torch, where a mode looks on
_PLAIN = (int, float, str, list, dict, set, deque)
_ENDS = ("raises", "exits", "time-limit", "not-simulated")


class Readings:
    """Gives another number in place of one that a line of the user's reads, the first time that it does so."""

    def __init__(self, more: bool) -> None:
        self.more = more
        self.places: set[tuple[int, ...]] = set()
        self.read: list[Frame] = []

    def __call__(self, value: Any, place: Place) -> Any:
        """What is read instead."""
        through = any("/torch/" in file and not file.endswith(_AROUND) for file in place.files)
        elsewhere = through or place.in_backward or place.library()  # a library's own question
        if place.ids in self.places or elsewhere or place.user is None:
            return value
        if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or not 0 < value.numel() <= MOST):
            return value
        self.places.add(place.ids)
        change = _more if self.more else _less
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                numbers = torch.tensor([change(each) for each in value.flatten().tolist()], dtype=value.dtype)
                is_other = not torch.equal(numbers, value.flatten())
                value.copy_(numbers.view_as(value))
        else:
            is_other, value = (other := change(value)) != value, other
        if is_other and (frame := place.frame()) is not None:
            self.read.append(frame)
        return value


def _more(value: Any) -> Any:
    if type(value) is int:
        return value + 1
    return value * 16.0 + 2.5 if type(value) is float else value


def _less(value: Any) -> Any:
    """Closer to zero: where it is an index, there is such a one."""
    if type(value) is int:
        return value // 2 if value > 0 else value
    return value * 0.5 if type(value) is float else value


def problems(caller: Caller, base: Call, seen: Collection[Failure]) -> list[Failure]:
    """What such values decide, at lines of which nothing else is told."""
    if not any(f.code in _WAITS for f in base.found):
        return []
    found: dict[tuple[str, Frame | None], Failure] = {}
    lines = lines_of((*base.found, *seen))  # a comprehension has a frame of its own before Python 3.12
    held = caller.state.read()
    try:
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            grow(caller, base)
            begun = worked_s()
            if (plain := _as_ever(caller, base)) is None or worked_s() - begun > SECONDS:
                return []
            # On a GPU a number that is too large may be an index, whose assertion would end the process's context.
            for more in (False, True) if driver().device.type != "cuda" else (False,):
                begun = worked_s()
                for each in _with_others(caller, base, plain, more):
                    if each.frame is not None and (each.frame.file, each.frame.line) not in lines:
                        found.setdefault((each.code, each.frame), each)
                if worked_s() - begun > SECONDS:
                    break
    finally:
        caller.readings = None
        caller.state.set_to(held)
    return list(found.values())


def grow(caller: Caller, base: Call) -> None:
    """Have the lists that the calls before ``base`` have made put back with the rest of what it began with."""
    now = caller.state.read()
    caller.state.set_to(base.before)
    caller.state.grow()
    base.before += caller.state.read()[len(base.before) :]
    caller.state.set_to(now)


def _as_ever(caller: Caller, base: Call) -> Call | None:
    """A call from the same state, where it does the same: no iterator has moved on, and no clock decides."""
    caller.state.set_to(base.before)
    same = caller.call(caller.args, caller.kwargs, drawing=base.number)
    return same if same.ended is None and not differences(base.steps, same.steps, random_drawn=False) else None


def _with_others(caller: Caller, base: Call, plain: Call, more: bool) -> Iterator[Failure]:
    caller.state.set_to(base.before)
    caller.readings = readings = Readings(more)
    other = caller.call(caller.args, caller.kwargs, drawing=base.number, led=True)
    caller.readings = None
    if not readings.read or (other.ended is not None and other.ended.code in _ENDS):
        return
    at = ", ".join(dict.fromkeys(str(frame.line) for frame in readings.read[:3]))
    why = f"({READ}, line {at})"
    moved = differences(base.steps, other.steps, random_drawn=False)
    # Where another way was gone, that has picked what is read; else the number has: ``experts[k](x)``.
    picked = () if any(failure.code == "branch-frozen" for failure in moved) else _PICKED
    for failure in moved:
        if failure.code in (*_FROZEN, *picked):
            yield replace(failure, message=f"{failure.message} {why}")
    codes = list(other.ran())
    known = [entry for change in (*base.changes, *plain.changes) for entry in change.entries()]
    entries = [entry for change in other.changes for entry in change.entries()]
    new = [entry for entry in entries if not any(_is_same(entry, each) for each in known)]
    for entry in new:
        left = effect(entry, written_at(entry, codes)) if isinstance(entry.after, _PLAIN) else None
        if left is not None and left.code == "host-counter":
            yield replace(left, message=f"{left.message} {why}")
    if other.ended is None and any(isinstance(entry.after, _PLAIN) for entry in new):
        behind = caller.call(caller.args, caller.kwargs, drawing=base.number, led=True)
        for failure in differences(base.steps, behind.steps, random_drawn=False) if behind.ended is None else ():
            if failure.code in _LATER:
                yield replace(failure, message=f"{failure.message} (one call later, {why[1:]}")


def _is_same(one: Any, other: Any) -> bool:
    return one.place == other.place and same(one.before, other.before)


def follows(failure: Failure) -> bool:
    """Whether a problem is none without another line's, which reads a value from the device."""
    return READ in failure.message or failure.message == read_tests.READ


def is_picked(failure: Failure) -> bool:
    """Whether what was read has picked a tensor: ``experts[k](x)``."""
    return failure.code in _PICKED and f"({READ}" in failure.message
