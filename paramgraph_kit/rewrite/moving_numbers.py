"""Steps whose number arguments move on: what replays do in a later epoch, which six steps of today's never come to.

A warm-up that is over, a layer that is no longer frozen, a rate by the number of the iteration: what a step is given as
a number may decide any of them. Where the original runs with such numbers, replays of one graph have to give the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paramgraph_kit.doctor.observe.other_numbers import OTHER_NUMBERS
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.around.later import ran_in
from paramgraph_kit.rewrite.conditions import Lent, steady
from paramgraph_kit.rewrite.lending import Lending
from paramgraph_kit.rewrite.neutral_numbers import wrong_beside
from paramgraph_kit.rewrite.proving.closeness import loosely_apart
from paramgraph_kit.rewrite.proving.deadline import RAISES, Deadline, unless_raises
from paramgraph_kit.rewrite.proving.proof import STEPS, WARM_UP, Arguments, Prover, Truth
from paramgraph_kit.rewrite.result import ANEW, Rewriting
from paramgraph_kit.rewrite.set_numbers import kept_by as kept_by
from paramgraph_kit.rewrite.set_numbers import wrong_set
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.source.reach import owner_of, settings_of
from paramgraph_kit.rewrite.starts import RAISES_THERE
from paramgraph_kit.rewrite.truths import truth_of, without_gradients
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure

LIMIT_S = 5.0
_NOW_AND_THEN = re.compile(r"epoch|stage|phase|round|level|task", re.IGNORECASE)  # what goes on after many steps
MOST_FAR = 2  # numbers that a step asks about and that lie further away
FURTHER = 13, 997
_CAPTURED = WARM_UP + 1  # steps that have today's numbers: a warm-up, and the one that is captured


def wrong_given(attempt: Lending, truth: Truth, lines: Lent, failures: Sequence[Failure]) -> str:
    """What replays do otherwise as the numbers that the function is given, or finds, move on; "" where nothing."""
    if attempt.prover.is_part:
        return ""
    names = _numbers(attempt)
    wrong = (_wrong_with(attempt, truth, lines, names) if names else "") or wrong_set(attempt, truth, lines, failures)
    return wrong or wrong_beside(attempt, truth, lines)


def _wrong_with(attempt: Lending, truth: Truth, lines: Lent, names: dict[int | str, str]) -> str:
    until = worked_s() + LIMIT_S
    for start in (1, *_far(attempt, names)):
        if start > 1 and worked_s() >= until:
            break
        together = _differ(attempt, truth, lines, names, start)
        for each in [[name] for name in names] if together is None and len(names) > 1 else ():  # one of them is a place
            together = together or _differ(attempt, truth, lines, each, start)
        if together:
            told = " and ".join(f"`{name}`" for name in names.values()) + (" is" if len(names) < 2 else " are")
            return f"where {told} larger, replays of one graph would differ ({together})"
    return _wrong_further(attempt, truth, lines, names, until)


def _wrong_further(attempt: Lending, truth: Truth, lines: Lent, names: dict[int | str, str], until: float) -> str:
    """The same much further on, whatever is asked: ``int(step * 0.3)`` of the next ones may be what it was."""
    args, kwargs = attempt.prover.inputs
    whole = {at: n for at, n in names.items() if type(args[at] if isinstance(at, int) else kwargs[at]) is int}
    for start in FURTHER if whole else ():
        for each in [[name] for name in whole] if worked_s() < until else ():
            why = _differ(attempt, truth, lines, each, start)
            if why and why != RAISES_THERE:  # it may lie beyond a table, which is loud
                return f"where `{whole[each[0]]}` is much larger, replays of one graph would differ ({why})"
    return ""


def with_numbers_moving(
    attempt: Ways, failures: Sequence[Failure], rewritten: Callable[[Ways, Sequence[Failure], Truth], Rewriting]
) -> Rewriting | None:
    """A whole rewriting that is found, and tried, in steps whose number arguments move; None without any.

    What the host computes of such a number is the same in all steps otherwise, and is given to no graph.
    """
    at = attempt._definition()
    said = at is not None and any(OTHER_NUMBERS in f.message for f in failures) and attempt.says_numbers_before(*at)
    names = _numbers(attempt) if said else {}
    for each in dict.fromkeys([tuple(names), *((name,) for name in names)]) if names else ():
        plain, other = attempt.prover.given(_moving(each)), attempt.with_inputs(attempt.prover.given(_moving(each)))
        try:
            plain.eager()
            truth = truth_of(plain)
        except RAISES:
            continue  # it takes no others: one of them is a place, or a size
        ways = other.giving_back(failures), other, other.leading(failures), other.stepping_behind(failures)
        for way in (each for each in ways if each is not None and not truth.unsteady):
            own = truth if way.given_back is None else without_gradients(truth)
            made = rewritten(way, failures, own)
            # Captured with today's numbers, too: the third of those that move may be behind a warm-up.
            if made.complete and not _differ(attempt, own, made, each, 1):
                return made
        return None
    return None


def for_each_number(attempt: Ways, truth: Truth, made: Rewriting) -> Rewriting:
    """A rewriting of which only numbers are left that an argument decides, as whole where one changes now and then."""
    frozen = all(f.code == "scalar-frozen" and OTHER_NUMBERS in f.message for f in made.left)
    names = _numbers(attempt) if frozen and made.left else {}
    kept = {at: name for at, name in names.items() if _differ(attempt, truth, made, [at], 1)}
    goes_on = [now_and_then(attempt.sources.values(), attempt.entry_name, at, name) for at, name in kept.items()]
    if kept and all(goes_on):
        made.complete, made.left, made.instead = True, [], []
        told = ", ".join(f"`{name}`" for name in kept.values())
        made.verified.append(f"its graph keeps {told}: {ANEW}")
    return made


def now_and_then(sources: Iterable[Source], function: str, at: int | str, name: str) -> bool:
    """Whether an argument changes after many calls, as loops around the calls tell, or else its name.

    ``for epoch in ...: for x in ...: step(epoch, x)`` is so; one of the innermost loop is another number in each call.
    """
    told = list[bool]()
    for source in sources:
        for call in (n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == function):
            given = {each.arg: each.value for each in call.keywords}
            value = call.args[at] if isinstance(at, int) and at < len(call.args) else given.get(name)
            loops = [n for n in source.above(call) if isinstance(n, ast.For)]
            turned = [{n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)} for loop in loops]
            if isinstance(value, ast.Name) and any(value.id in names for names in turned):
                told.append(value.id not in turned[0])
    return all(told) if told else bool(_NOW_AND_THEN.search(name))


def _moving(names: Iterable[int | str]) -> Callable[[int, Arguments], Arguments]:
    """Other numbers in each step: those that come next, where they are whole."""

    def change(step: int, given: Arguments) -> Arguments:
        args, kwargs = [*given[0]], {**given[1]}
        for at in names:
            held: Any = args if isinstance(at, int) else kwargs
            held[at] = held[at] + step if type(held[at]) is int else held[at] * (1 - step / 16)
        return tuple(args), kwargs

    return change


def _numbers(attempt: Lending) -> dict[int | str, str]:
    """Where the function is given numbers that may be others in a later call, and what it calls them."""
    args, kwargs = attempt.prover.inputs
    own = owner_of(attempt.function) is not None
    named = [*attempt.signature.parameters][own:]
    named += [f"argument {n + 1}" for n in range(len(named), len(args))]
    found: dict[int | str, str] = {n: named[n] for n, each in enumerate(args) if type(each) in (int, float)}
    return found | {name: name for name, each in kwargs.items() if type(each) in (int, float)}


def _far(attempt: Lending, names: dict[int | str, str]) -> list[int]:
    """How much larger a number is that the step compares with, or divides by."""
    args, kwargs = attempt.prover.inputs
    now = [args[at] if isinstance(at, int) else kwargs[at] for at in names]
    known = settings_of(attempt.prover.state) | attempt.space
    found = set[int]()
    for source in attempt.sources.values():
        for side in (each for top in ran_in(source, attempt.ran) for n in ast.walk(top) for each in _sides(n)):
            value = (
                side.value
                if isinstance(side, ast.Constant)
                else known.get(getattr(side, "id", getattr(side, "attr", "")))
            )
            found |= {value - n for n in now if type(value) is int and type(n) is int and value > n + STEPS - _CAPTURED}
    return [each - 1 for each in sorted(found)[:MOST_FAR]]


def _sides(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
        return [node.right]
    return node.args if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max") else []


def _differ(attempt: Lending, truth: Truth, lines: Lent, names: Any, start: int) -> str | None:
    """How replays differ with numbers that are so much larger from the first replay on; None where there are none."""

    def change(step: int, given: Arguments) -> Arguments:
        args, kwargs = [*given[0]], {**given[1]}
        for at in names if step >= _CAPTURED else ():
            held: Any = args if isinstance(at, int) else kwargs
            held[at] = _later(held[at], start + step - _CAPTURED)
        return tuple(args), kwargs

    def one() -> Prover:
        other = attempt.prover.from_now().given(change)
        other.deadline = Deadline(LIMIT_S)
        return other

    plain = one()
    seen = unless_raises(plain.eager)
    if seen is None:
        return None  # it takes no others
    known = {name: values for name, values in seen.items() if name in truth.seen}
    with lines.applied():
        new = unless_raises(lambda: one().captured(lines.around))
    if new is None:
        return RAISES_THERE
    return loosely_apart(steady(plain, known), new) if loosely_apart(known, new) else ""


def _later(value: Any, steps: int) -> Any:
    return value + steps if type(value) is int else value * 0.5**steps
