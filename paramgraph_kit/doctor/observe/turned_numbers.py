"""Calls with numbers as arguments for which a line does otherwise: those that tests turn at, and those far off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from paramgraph_kit.doctor.observe import freed_gradients
from paramgraph_kit.doctor.observe.asked_numbers import noting
from paramgraph_kit.doctor.observe.asked_tests import asked_tests
from paramgraph_kit.doctor.observe.asks import Ask, first_of_each, is_at, turning
from paramgraph_kit.doctor.observe.further_numbers import further
from paramgraph_kit.doctor.observe.may_have_run import may_have_run
from paramgraph_kit.doctor.observe.near_numbers import Others
from paramgraph_kit.doctor.observe.numbers_within import numbers_within
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.other_numbers import (
    OTHER_NUMBERS,
    called_with,
    differ,
    exchanged_by,
    left_behind,
)
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.trace.model import Failure, Frame

_MOST_OF_TEST = 3  # numbers that are tried for one test
_MOST, _MOST_OF_TEXTS = 8, 12  # and for all of them
_MOST_BEHIND = 4  # calls that show what is asked behind a test that turned
_FURTHER_S = 0.4  # that numbers far off may take, where nothing is told of those close by


def turned_arguments(caller: Caller, base: Call, seen: list[Failure]) -> list[Failure]:
    """What number arguments decide that those close by do not: ``if step < warmup``."""
    values = enumerate((*caller.args, *caller.kwargs.values()))
    every = ((at, inner) for at, value in values for inner in numbers_within(value))
    plain = {(at, n.path): n.value for at, n in every if n.of is None and type(n.value) in (int, float)}
    if not plain:
        return []
    turned = _Turned(caller, base, seen, plain)
    turned.find()
    return turned.frozen + freed_gradients.problems(turned.frozen, caller, base)


@dataclass(slots=True)
class _Turned:
    """Those of one examination."""

    caller: Caller
    base: Call
    seen: list[Failure]
    plain: Others
    frozen: list[Failure] = field(default_factory=list)
    told: set[tuple[str, Frame | None]] = field(default_factory=set)
    drawn: set[Frame | None] = field(default_factory=set)  # by what cannot be made to draw the same
    tried: int = 0
    looks: int = 0

    def find(self) -> None:
        """Try numbers for all that is asked of them."""
        self.told |= {(f.code, f.frame) for f in self.seen if OTHER_NUMBERS in f.message or f.code == "branch-frozen"}
        self.drawn |= {f.frame for f in self.seen if f.code == "host-random"}
        known = any(OTHER_NUMBERS in f.message for f in self.seen)
        if (asks := self._asked({})) is None:
            return
        asks += asked_tests(self.caller.function, self.caller.args, self.caller.kwargs, self.plain)
        waiting: list[tuple[Ask, Others]] = [(ask, {}) for ask in first_of_each(asks)]
        places = {_asked_at(ask, {}) for ask, _ in waiting}
        while waiting:
            ask, beside = waiting.pop(0)
            if any(frame and is_at(frame, ask.place) for _, frame in self.told):
                known = True
            elif not (ask.of_text and self.frozen):
                behind = self._turn(ask, beside)
                more = [(a, others) for a, others in behind if _asked_at(a, others) not in places]
                places |= {_asked_at(a, others) for a, others in more}
                waiting += more
        if not self.frozen and not known:
            self._further()

    def _asked(self, numbers: Others) -> list[Ask] | None:
        """What is asked of the numbers in a call with others among them; None where it takes none of these."""
        asks = list[Ask]()
        noted: Others = {key: noting(value, key, asks) for key, value in (self.plain | numbers).items()}
        return asks if called_with(self.caller, noted, self.base).ended is None else None

    def _turn(self, ask: Ask, beside: Others) -> Iterator[tuple[Ask, Others]]:
        """Try numbers for which one test goes the other way; what is asked behind it, where that shows nothing."""
        before, most = len(self.frozen), _MOST_OF_TEXTS if ask.of_text else _MOST
        own, shown = (self.plain | beside)[ask.argument], list[Others]()
        for number in islice(turning(ask, own), _MOST_OF_TEST if self.tried < most else 0):
            self.tried += 1
            others = {**beside, ask.argument: number}
            other = called_with(self.caller, others, self.base)
            if other.ended is not None:
                continue
            self._compare(other, others)
            if len(self.frozen) > before:  # at the number itself `max(step - 30, 0)` is still what it was
                return
            shown.append(others)
        for others in shown[:1] if self.looks < _MOST_BEHIND and not ask.of_text else ():
            self.looks += 1
            yield from ((each, others) for each in first_of_each(self._asked(others) or []))

    def _compare(self, other: Call, numbers: Others) -> None:
        how = self._how(numbers)
        found = differ(self.caller, self.base, other)
        for f in [*found, *left_behind(self.caller, self.base, other, [*self.seen, *self.frozen])]:
            if f.code != "stale-input" and f.frame not in self.drawn and (f.code, f.frame) not in self.told:
                self.told.add((f.code, f.frame))
                self.frozen.append(replace(f, message=f"{f.message} {how}"))
        self.frozen += exchanged_by(self.caller, self.base, other, numbers, how, [*self.seen, *self.frozen])

    def _how(self, numbers: Others) -> str:
        names = [*(f"argument {n + 1}" for n in range(len(self.caller.args))), *self.caller.kwargs]
        given = (f"{names[at]}{path} = {self.plain[at, path]}" for at, path in numbers)
        return f"{OTHER_NUMBERS}{', '.join(given)})"

    def _further(self) -> None:
        """What numbers decide of which nothing is asked that can be followed: those far off, and those in tables."""
        lines = {f.frame for f in self.seen if f.code == "branch-frozen"} | self.drawn
        codes = may_have_run(self.base.ran(), self.caller.state.functions)
        functions = [f for f in self.caller.state.functions if f.__code__ in codes]
        begun = worked_s()
        for needed, numbers in further(self.plain, functions):
            if not needed and worked_s() - begun > _FURTHER_S:
                return
            other = called_with(self.caller, numbers, self.base)
            found = differ(self.caller, self.base, other) if other.ended is None else []
            told = [f for f in found if f.code != "stale-input" and f.frame not in lines]
            if told:
                self.frozen += [replace(f, message=f"{f.message} {self._how(numbers)}") for f in told]
                return


def _asked_at(ask: Ask, beside: Others) -> tuple[Any, ...]:
    """Where it is asked: again, where another number beside it is another one, as of ``(a, b) == (3, 9)``."""
    return ask.place, ask.argument, tuple(key for key in beside if key != ask.argument)
