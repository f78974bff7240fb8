"""From what was found to a diff that was tried: which lines are rewritten, and what has to be done otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.doctor.explain.exception import explain
from paramgraph_kit.doctor.explain.gather import text_of
from paramgraph_kit.doctor.known.evidence import first_line
from paramgraph_kit.doctor.rewrite import by_hand
from paramgraph_kit.doctor.rewrite.planning import Attempt, Plan
from paramgraph_kit.doctor.rewrite.proof import STEPS, After, Truth
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.errors import CaptureError
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import frame_text

TRIES = 3  # how often rewrites that change the numbers are taken back


@dataclass(slots=True)
class Rewriting:
    """Lines of the user's, rewritten: the diff, what was tried with it, and what is left to do by hand."""

    function: str
    diff: str = ""
    verified: list[str] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)  # what could not be rewritten safely, and what to do
    left: list[Failure] = field(default_factory=list)  # the same as data
    complete: bool = False  # everything found is rewritten, and one graph gives eager's numbers
    usage: str = ""  # how what was moved behind the launch is called
    after: After | None = None  # the moved lines, as a function of a step's inputs and result
    _borrow: Any = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts the user's own function runs the rewritten lines; nothing is written to a file."""
        if self._borrow is None:
            yield
            return
        with self._borrow():
            yield

    def __str__(self) -> str:
        parts = [self.diff] if self.diff else []
        parts += [f"  then   {self.usage}"] if self.usage else []
        parts += [f"  tried  {line}" for line in self.verified]
        parts += [f"  by hand  {line}" for line in self.instead]
        return "\n".join(parts) if parts else "  nothing to rewrite"

    def __repr__(self) -> str:
        lines = sum(line.startswith("+") and not line.startswith("+++") for line in self.diff.splitlines())
        state = "verified" if self.complete else f"{len(self.instead)} by hand"
        return f"Rewriting({self.function}: {lines} new lines, {state})"


def rewrite(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], failures: Sequence[Failure]) -> Rewriting:
    """Rewrite what is sure, try it against the function as it is, and say what has to be done otherwise."""
    attempt = Attempt(function, args, kwargs)
    found = Rewriting(getattr(function, "__qualname__", type(function).__name__))
    try:
        with attempt.watched():
            truth = Truth(attempt.prover)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        found.instead = [f"it cannot be run {STEPS} times with other inputs: {_brief(error)}"]
        found.instead += by_hand.lines(attempt, failures)
        found.left = list(failures)
        return found
    plans: list[Plan] = []
    for _ in range(TRIES):
        plans = attempt.plans(failures)
        wrong = _changed(attempt, plans, truth)
        if not wrong:
            break
        for plan, why in wrong:
            attempt.unsafe |= {id(failure): why for failure in plan.failures}
    else:
        plans = []
    if plans:
        _show(attempt, plans, found)
    handled = {id(f) for plan in plans for f in plan.failures}
    left = [f for f in failures if id(f) not in handled]
    if plans:
        found.verified.append(f"eagerly it gives the original's results and state in {STEPS} steps with moved inputs")
        if _capture(attempt, plans, truth, found):
            left = by_hand.still(attempt, plans, failures, left) if left else left
            found.complete = not left
        else:
            left = by_hand.still(attempt, plans, failures, left)
    found.left, found.instead = left, by_hand.lines(attempt, left, known=failures)
    return found


def _changed(attempt: Attempt, plans: Sequence[Plan], truth: Truth) -> list[tuple[Plan, str]]:
    """The plans that change what the function does, each tried alone where all together do."""
    if not plans or not (why := _tried(attempt, plans, truth)):
        return []
    if len(plans) == 1:
        return [(plans[0], why)]
    alone = [(plan, _tried(attempt, [plan], truth)) for plan in plans]
    wrong = [(plan, text) for plan, text in alone if text]
    return wrong or [(plan, why) for plan in plans]


def _tried(attempt: Attempt, plans: Sequence[Plan], truth: Truth) -> str:
    """What is wrong with the rewritten function, run eagerly; "" where nothing is."""
    try:
        with attempt.borrow(plans)():
            wrong = truth.wrong(attempt.prover.from_now().eager(attempt.after(plans)))
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        return _brief(error)
    return f"the numbers would change ({wrong[0]})" if wrong else ""


def _show(attempt: Attempt, plans: Sequence[Plan], found: Rewriting) -> None:
    found.diff = "\n".join(
        source.diff(edits) for source in attempt.sources.values() if (edits := attempt.edits(plans, source))
    )
    found._borrow, found.after = attempt.borrow(plans), attempt.after(plans)
    if attempt.moved is not None and found.after is not None:
        own = attempt.moved.parameters[:1] == ["self"]
        given = ", ".join(attempt.moved.parameters[own:])
        found.usage = f"call {'self.' * own}{attempt.moved.name}({given}) after each launch"


def _capture(attempt: Attempt, plans: Sequence[Plan], truth: Truth, found: Rewriting) -> bool:
    """Capture the rewritten function and compare what its replays do; whether that is what the function does."""
    where = driver().source().label()
    try:
        with attempt.borrow(plans)():
            seen = attempt.prover.from_now().captured(attempt.after(plans))
    except CaptureError as error:
        place = frame_text(error.failure.frame)
        found.verified.append(f"its capture still fails: {error.failure.title} [{error.failure.code}] at {place}")
        return False
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException as error:
        found.verified.append(f"its capture still fails: {_brief(error)}")
        return False
    wrong = truth.wrong(seen)
    if wrong:
        found.verified.append(f"replays of one graph differ from eager: {wrong[0]}")
        return False
    bits = "bit for bit" if truth.is_bitwise(seen) else truth.closeness()
    found.verified.append(f"replays of one graph give eager's results and state {bits} ({where})")
    return True


def _brief(error: BaseException) -> str:
    failure = explain(error)
    where = f" at {frame_text(failure.frame)}" if failure.frame else ""
    return f"{type(error).__name__}: {first_line(text_of(error))}{where}"[:200]
