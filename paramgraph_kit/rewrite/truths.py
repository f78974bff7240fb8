"""What a function does, with its optimizers as they are and in the forms that captures have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from paramgraph_kit.driver.select import device
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.proving.closeness import GRADIENTS
from paramgraph_kit.rewrite.proving.proof import Prover, Truth

LIMIT_S = 120.0  # after which no more ways of rewriting a function are begun
LATE = "further ways of rewriting it were not tried, as the others took {:.0f} s"


def truth_of(prover: Prover, *, makes_one: bool = False) -> Truth:
    """What runs of a rewritten function are compared with; it may make optimizers itself."""
    found = optimizers.found_in(prover.state)
    ways = [(rate, fuse) for fuse in (False, True) for rate in (False, True)]
    forms = [partial(_in_form, found, rate=rate, fuse=fuse) for rate, fuse in ways]
    return Truth(prover, forms=forms if found or makes_one else ())


@contextmanager
def _in_form(found: Sequence[dict[str, Any]], *, rate: bool, fuse: bool) -> Iterator[None]:
    there = device()
    with optimizers.made_so(there, rate=rate, fuse=fuse), optimizers.prepared(found, there, rate=rate, fuse=fuse):
        yield


def without_gradients(truth: Truth) -> Truth:
    """The same where gradients that a step misses are there behind it: what it has made of them counts."""
    other = truth.anew()
    other.seen = {name: values for name, values in truth.seen.items() if name != GRADIENTS}
    return other


class Known:
    """A function's truth, which ways of rewriting ask for one after the other: only the first has all of it run."""

    def __init__(self, until: float | None = None) -> None:
        self.until = worked_s() + LIMIT_S if until is None else until
        self.cut_short = False
        self._prover: Prover | None = None
        self._truth: Truth | None = None
        self._has_forms = False

    def is_late(self) -> bool:
        """Whether no more ways should be begun; whoever asks begins none then."""
        self.cut_short |= (late := worked_s() > self.until)
        return late

    def prover(self) -> Prover | None:
        """Who runs the function from the same state with the same inputs; None while nobody has asked."""
        return self._prover.anew() if self._prover is not None else None

    def truth_of(self, prover: Prover, *, makes_one: bool = False) -> Truth:
        """What it does; where that is known it runs once more for those who watch it."""
        has_forms = makes_one or bool(optimizers.found_in(prover.state))
        if self._truth is not None and self._has_forms == has_forms:
            prover.eager()
            return self._truth.anew()
        truth = truth_of(prover, makes_one=makes_one)
        if self._truth is None:
            self._prover, self._truth, self._has_forms = prover.anew(), truth, has_forms
        return truth

    def forget(self) -> None:
        """Let go of it; nobody asks any more."""
        if self._prover is not None:
            self._prover.forget()
        self._prover = self._truth = None
