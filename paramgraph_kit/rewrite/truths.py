"""What a function does, with its optimizers as they are and in the forms that captures have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from paramgraph_kit.driver.select import device
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.proving.closeness import GRADIENTS
from paramgraph_kit.rewrite.proving.proof import Form, Prover, Truth

LIMIT_S = 120.0  # of work, after which nothing more of a function is tried
FIRST_S = 100.0  # of it, after which what is tried first gives way to what comes behind
LEAST_S = 40.0  # for what comes behind these in any case
LATE = "in {:.0f} s not all was tried: left are {}, which a smaller model, or fewer rounds in one call, may give"
LINES, ROUNDS, PIECES = "more ways of rewriting its lines", "rounds of its loops as functions", "compiled pieces of it"


def truth_of(prover: Prover, watched: Form = nullcontext, *, makes_one: bool = False) -> Truth:
    """What runs of a rewritten function are compared with; it may make optimizers itself."""
    found = optimizers.found_in(prover.state)
    ways = [(rate, fuse) for fuse in (False, True) for rate in (False, True)]
    forms = [partial(_in_form, found, watched, rate=rate, fuse=fuse) for rate, fuse in ways]
    return Truth(prover, forms=forms if found or makes_one else (), watched=watched)


@contextmanager
def _in_form(found: Sequence[dict[str, Any]], watched: Form, *, rate: bool, fuse: bool) -> Iterator[None]:
    there, form = device(), {"rate": rate, "fuse": fuse}
    with optimizers.made_so(there, **form), optimizers.prepared(found, there, **form), watched():  # a rate is a tensor
        yield


def without_gradients(truth: Truth) -> Truth:
    """The same where gradients that a step misses are there behind it: what it has made of them counts."""
    other = truth.anew()
    other.seen = {name: values for name, values in truth.seen.items() if name != GRADIENTS}
    return other


def in_one_form(truth: Truth) -> Truth:
    """The same where its optimizers stay as they are."""
    other = truth.anew()
    other.in_forms = []
    return other


class Known:
    """A function's truth, which ways of rewriting ask for one after the other: only the first has all of it run."""

    def __init__(self) -> None:
        self._begun = worked_s()
        self.until, self._of = self._begun + LIMIT_S, LINES
        self._left: dict[str, None] = {}  # what was not tried to its end
        self.operations = [0, 0]  # of its longest step, in it and around it
        self.seen: dict[Any, Any] = {}  # what else runs of it as it is have shown, by what was asked
        self._prover: Prover | None = None
        self._truth: Truth | None = None
        self._has_forms = False

    def is_late(self) -> bool:
        """Whether no more ways should be begun; whoever asks begins none then."""
        if late := worked_s() > self.until:
            self.note_left(self._of)
        return late

    def begin(self, of: str, *, last: bool = False) -> None:
        """Begin with rounds, or with lines, which leave time to what comes behind them."""
        limit = LIMIT_S if last else FIRST_S
        self.until, self._of = max(self._begun + limit, worked_s() + LEAST_S), of

    def note_left(self, of: str) -> None:
        """Note that something was not tried to its end."""
        self._left[of] = None

    def told(self) -> tuple[str, ...]:
        """What was not tried, for lack of time."""
        return (LATE.format(worked_s() - self._begun, " and ".join(self._left)),) if self._left else ()

    def in_its_form(self, prover: Prover) -> Truth:
        """What it does as it is, where no optimizer gets another form."""
        return in_one_form(self.truth_of(prover)) if self._truth is not None else Truth(prover)

    def further(self) -> Known:
        """What is known of another function that is tried in the same time."""
        other = Known()
        other.is_late = self.is_late  # type: ignore[method-assign]  # whoever asks is told of by the first
        return other

    def prover(self) -> Prover | None:
        """Who runs the function from the same state with the same inputs; None while nobody has asked."""
        return self._prover.anew() if self._prover is not None else None

    def truth_of(self, prover: Prover, watched: Form = nullcontext, *, makes_one: bool = False) -> Truth:
        """What it does; where that is known it runs once more for those who watch it, with ``watched`` around."""
        has_forms = makes_one or bool(optimizers.found_in(prover.state))
        if self._truth is not None and self._has_forms == has_forms:
            with watched():
                prover.eager()
            return self._truth.anew()
        truth = truth_of(prover, watched, makes_one=makes_one)
        truth.is_late = self.is_late
        if self._truth is None:
            self.operations = [*truth.operations]
            self._prover, self._truth, self._has_forms = prover.anew(), truth, has_forms
        return truth

    def forget(self) -> None:
        """Let go of it; nobody asks any more."""
        if self._prover is not None:
            self._prover.forget()
        self._prover = self._truth = None
        self.seen.clear()
