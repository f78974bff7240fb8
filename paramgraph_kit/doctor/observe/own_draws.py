"""What numbers decide that a program's own generators draw: calls that begin alike show it, where these draw others."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType

from paramgraph_kit.doctor.observe import chance, drawn_copies
from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.source_lines import lines_of
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.trace.model import Failure, Frame

CALLS = 16  # a coin falls the same way in all of them once in 65,000 examinations
LEAST = 8  # also of slow ones
_NUMBERS = ("scalar-frozen", "cpu-scalar-frozen", "size-frozen", "stale-input")


def problems(caller: Caller, base: Call, seen: Iterable[Failure], codes: list[CodeType]) -> list[Failure]:
    """What differs among calls that begin as ``base`` did but for the states of such generators.

    Only these can have decided it: a number that is only printed or counted on the host makes no difference.
    """
    if not base.own_drawn or base.captures or base.replays or base.ended is not None:
        return []
    known = {(f.code, f.frame) for f in [*seen, *base.found]}
    more: dict[tuple[str, Frame | None], Failure] = {}
    last, copied = base, set[Frame | None]()
    begun, rare = worked_s(), set(chance.tests(codes))
    held = caller.state.read()
    try:
        for number in range(chance.MOST_CALLS):
            slow, told = worked_s() - begun > chance.CALLS_S, lines_of([*seen, *more.values()])
            waits = any((at.file, at.line) not in told for at in rare)
            if number >= LEAST and (slow or (number >= CALLS and not waits)):
                break
            caller.state.set_to(base.before)
            # Those of ``random``, numpy and torch draw what they drew.
            other = caller.call(caller.args, caller.kwargs, drawing=base.number, anew=True)
            if other.ended is not None:
                break
            # What is drawn inside a branch shows between two calls that took it.
            found = [
                f
                for each in ((base, last) if last is not base else (base,))
                for f in differences(each.steps, other.steps, random_drawn=True, only_random=True)
            ]
            at = [f.frame for f in [*seen, *more.values(), *found]]
            found += chance.picked(base, other, codes, at)
            for each in [*found, *other.found]:
                if (each.code, each.frame) not in known:
                    more.setdefault((each.code, each.frame), each)
            copied |= drawn_copies.lines(base.steps, other.steps)
            last = other
    finally:
        caller.state.set_to(held)
    base.found[:] = drawn_copies.told(base.found, copied)
    return list(more.values())


def told_once(seen: Iterable[Failure], drawn: Iterable[Failure]) -> list[Failure]:
    """All of these, where a number that is drawn is told as that, and not as one that moves with the calls."""
    drawn = list(drawn)
    at = {f.frame for f in drawn if f.code == "host-random"}
    return [*(f for f in seen if not (f.code in _NUMBERS and f.frame in at)), *drawn]
