"""Rewritten, and rewritten again on the lines that come of it, each round tried against the function as it is."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite import by_hand
from paramgraph_kit.rewrite.around.watched import Shown
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.proving.proof import NOTHING, Around, Truth
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure

LIMIT_S = 30.0
TRIES = 4  # how often rewrites that change the numbers are taken back
ASKS = ("data-dependent-branch", "sync-item", "tensor-bound")  # rewritten by what are tensors by now
SURE = 2  # in how many ways of rewriting a plan was wrong alone before it is taken to be so in others
OFTEN = "the numbers would change"
UNTRIED = "there was no time left to try it"
AGAIN = 7  # how often what rewritten lines still have is rewritten


class Rounds:
    """Rewritten once, and what that has shown rewritten again, each on the lines of the one before."""

    def __init__(self) -> None:
        self.all: list[tuple[Ways, Any]] = []  # with the context in which its lines run
        self.texts: dict[str, list[str]] = {}  # the lines of each file, as the last has left them
        self.around = NOTHING
        self.ahead: list[str] = []  # lines for ahead of a cell, which its own would run again
        self.key: tuple[str, ...] = ()  # what runs, as far as plans make it
        self.mover: Ways  # the one whose lines go around the launch

    @property
    def moves(self) -> bool:
        """Whether something goes around the launch."""
        return self.around.before is not None or self.around.after is not None

    def add(self, attempt: Ways, plans: Sequence[Plan]) -> None:
        """One more."""
        if not self.moves:
            self.mover, self.around = attempt, attempt.around(plans)
        elif attempt.only_feeds:
            self.mover.fed, self.around = attempt.fed, _joined(self.around, attempt.around(plans))
        elif attempt.moved is not None:
            self.mover.moved, self.around = attempt.moved, _joined(self.around, attempt.around(plans))
        self.all.append((attempt, attempt.borrow(plans)))
        self.key += (_known(attempt, plans),)
        held = ((plan, getattr(attempt._before(plan), "name", "")) for plan in plans if plan.hoisted)
        of_cell = (plan for plan, name in held if cell.is_whole(plan.source.file, name))
        self.ahead += [line for plan in of_cell for line in plan.hoisted]
        texts = attempt.texts(plans)
        self.texts |= {file.removesuffix(REWRITTEN * (len(self.all) - 1)): lines for file, lines in texts.items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts the user's functions run the lines of the last."""
        with ExitStack() as stack:
            for _, lent in self.all:
                stack.enter_context(lent())
            for first, _ in self.all[:1]:
                stack.enter_context(first.prover.with_around(self.around))
            yield


def safe(attempt: Ways, around: Around | None, failures: Sequence[Failure], truth: Truth) -> list[Plan]:
    """Plans for what was found, without those that change what the function does."""
    for _ in range(TRIES):
        plans = attempt.plans(failures)
        wrong = _changed(attempt, around, plans, truth)
        if not wrong:
            return plans
        for plan, why in wrong:
            attempt.take_back(plan, why)
    return []


def again(rounds: Rounds, truth: Truth) -> list[Failure]:
    """Rewrite what is still found in rewritten lines, as far as that goes; returns what is left in the end."""
    first, tries = rounds.all[0][0], AGAIN
    while True:
        with rounds.applied():
            problems = _problems(rounds, truth)
            tries = 0 if problems and tries and truth.is_late() else tries
            attempt = again_on(rounds, truth)
            if any(failure.code in ASKS for failure in problems) and tries:
                _look(attempt, rounds, truth)  # what is a tensor by now
            attempt.tensors = first.tensors
            plans = safe(attempt, rounds.around, problems, truth) if problems and tries else []
            if not plans and problems and tries and not rounds.moves:  # by now it may go around the launch
                attempt = again_on(rounds, truth)
                attempt.moves = True
                _look(attempt, rounds, truth)
                plans = safe(attempt, None, problems, truth)
                if not plans and all(attempt.is_returned(each) for each in problems):
                    attempt = attempt.split(problems) or attempt  # what is picked of the results is behind the launch
                    plans = safe(attempt, None, problems, truth)
                    inside, behind = attempt.prover.operations
                    plans = plans if inside >= behind else []
            elif not plans and problems and tries and None in (rounds.around.before, rounds.around.after):
                attempt = again_on(rounds, truth)  # what only a rewrite has shown, on the side where nothing is yet
                attempt.moves = True
                attempt.only_feeds = attempt.feeds = rounds.around.before is None
                attempt.fetches = first.fetches
                _look(attempt, rounds, truth)
                plans = safe(attempt, rounds.around, problems, truth)
        if not plans:
            return problems
        rounds.add(attempt, plans)
        tries -= 1


def _problems(rounds: Rounds, truth: Truth) -> list[Failure]:
    """What is still found in rewritten lines, asked once for the same lines: several ways come to them."""
    first = rounds.all[0][0]
    key = rounds.key, first.prover
    if key not in truth.examined:
        found = examine(first.function, first.args, first.kwargs, limit_s=LIMIT_S).problems
        if rounds.around.before is not None and any(each.code == "raises" for each in found):
            with first.prover.from_now().prepared():  # it may need what that makes
                found = examine(first.function, first.args, first.kwargs, limit_s=LIMIT_S).problems
        truth.examined[key] = found
    return [replace(failure) for failure in truth.examined[key]]  # others, as they are told apart by what they are


def _look(attempt: Ways, rounds: Rounds, truth: Truth) -> None:
    """See what names hold in rewritten lines, once for the same lines."""
    prover, around = attempt.prover, rounds.around
    key = _lines_of(rounds)
    if key not in truth.looked:
        with attempt.watched():
            prover.from_now().eager(around)
        truth.looked[key] = copy(attempt), [*prover.operations], [*prover.products]
        return
    known, prover.operations[:], prover.products[:] = truth.looked[key]
    needed = attempt.needed
    attempt.knows(known)
    attempt.needed = needed


def once_more(first: Ways) -> Ways:
    """The same function, on the lines that it has by now."""
    again = Ways(first.function, first.args, first.kwargs, first.prover)
    again.steps, again.read_numbers, again.reads_there = first.steps, first.read_numbers, first.reads_there
    return again


def again_on(rounds: Rounds, truth: Truth) -> Ways:
    """The same with what just these lines have shown in other ways of rewriting that came to them."""
    again = once_more(rounds.all[0][0])
    again.shown = truth.shown.setdefault(_lines_of(rounds), Shown())
    return again


def overwritten(rounds: Rounds, truth: Truth) -> dict[int, bool]:
    """Results that later calls write over, and did not before; asked once for the same lines."""
    prover, key = rounds.all[0][0].prover, ("overwritten", *_lines_of(rounds))
    if key not in truth.shown:
        with rounds.applied():
            run = prover.from_now()
            run.eager(rounds.around)
        found = {at: other for at, other in run.overwritten.items() if at not in truth.overwritten}
        truth.shown[key] = found, [*prover.operations], [*prover.products]
    known: dict[int, bool]
    known, prover.operations[:], prover.products[:] = truth.shown[key]
    return known


def _lines_of(rounds: Rounds) -> tuple[Any, ...]:
    """What runs where rounds are applied, and who runs it."""
    return rounds.key, rounds.all[0][0].prover, rounds.around.before is None, rounds.around.after is None


def _joined(first: Around, more: Around) -> Around:
    """What goes around a launch already, with what it does not have yet."""
    return Around(first.before or more.before, first.after or more.after)


def _changed(attempt: Ways, around: Around | None, plans: Sequence[Plan], truth: Truth) -> list[tuple[Plan, str]]:
    """The plans that change what the function does, found in few trials where all together do."""
    if not plans or not (why := tried(attempt, around, plans, truth)):
        return []
    if len(plans) == 1:
        return [(plans[0], why)]
    wrong = _wrong_of(plans, truth, lambda part: tried(attempt, around, _with_shared(part, plans), truth))
    truth.suspected.update(_suspect(plan) for plan, why in wrong if why not in (OFTEN, UNTRIED))
    return wrong or [(plan, why) for plan in plans]


def _wrong_of(plans: Sequence[Plan], truth: Truth, tried: Callable[[Sequence[Plan]], str]) -> list[tuple[Plan, str]]:
    """Those of plans that are wrong alone: plans that are right together are so alone, others are halved.

    What was wrong alone in another way of rewriting is asked before the others, which may be right without it; what was
    so in two of them is not asked again.
    """
    wrong = [(plan, OFTEN) for plan in plans if truth.suspected[_suspect(plan)] >= SURE]
    known = [plan for plan in plans if 0 < truth.suspected[_suspect(plan)] < SURE]
    rest = [plan for plan in plans if not truth.suspected[_suspect(plan)]]
    parts = [[plan] for plan in known] + ([rest] if rest and len(rest) < len(plans) else [])
    for part in parts or [rest[: len(rest) // 2], rest[len(rest) // 2 :]]:
        if part and truth.is_late():
            wrong += [(plan, UNTRIED) for plan in part]
        elif part and (why := tried(part)):
            wrong += [(part[0], why)] if len(part) == 1 else _wrong_of(part, truth, tried)
    return wrong


def _with_shared(part: Sequence[Plan], plans: Sequence[Plan]) -> list[Plan]:
    """Some of several plans, with the lines before the function that only others of these have, and that they name."""
    own = {line for plan in part for line in plan.hoisted}
    texts = [edit.text for plan in part for edit in plan.edits]
    shared = [line for plan in plans for line in plan.hoisted if line not in own and " = " in line]
    named = [line for line in shared if any(re.search(rf"\b{line.partition(' = ')[0]}\b", text) for text in texts)]
    return [replace(part[0], hoisted=[*named, *part[0].hoisted]), *part[1:]] if named else [*part]


def _suspect(plan: Plan) -> tuple[str, ...]:
    """What a plan writes for what, which is the same in other ways of rewriting, where its lines are others."""
    told = (f"{f.code}: {f.frame.text if f.frame is not None else ''}" for f in plan.failures)
    return (*told, *(edit.text for edit in plan.edits))


def tried(attempt: Ways, around: Around | None, plans: Sequence[Plan], truth: Truth) -> str:
    """What is wrong with the rewritten function, run eagerly; "" where nothing is. Asked once for the same lines."""
    key = _known(attempt, plans), around  # itself: an id would be that of another one once it is gone
    if key not in truth.tried:
        truth.tried[key] = _tries(attempt, around, plans, truth)
    return truth.tried[key]


def _known(attempt: Ways, plans: Sequence[Plan]) -> str:
    """What plans come to: lines, what stands before them, and the forms that optimizers have."""
    lines = {file: "".join(text) for file, text in attempt.texts(plans).items()}
    more = [(*plan.hoisted, *plan.brought) for plan in plans]
    return repr((lines, more, attempt.rate, sorted(attempt.fused), attempt.steps, attempt.kept is None))


def _tries(attempt: Ways, around: Around | None, plans: Sequence[Plan], truth: Truth) -> str:
    try:
        with attempt.borrow(plans)():
            joined = _joined(around or NOTHING, attempt.around(plans))
            wrong = truth.wrong(attempt.prover.from_now().eager(joined))
            if not wrong and truth.conditions is not None and truth.conditions.prover is attempt.prover:
                return str(truth.conditions.wrong(joined))
        return f"the numbers would change ({wrong[0]})" if wrong else ""
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        said = by_hand.brief(error)
    gc.collect()  # its frames hold a loss, which would keep the backward pass on the stream of this trial
    return said
