"""A round in which nothing was found: captured as it is, and compared with what it does eagerly."""

from __future__ import annotations

from typing import Any

from paramgraph_kit.driver.select import driver
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rewriting import REPLAYED
from paramgraph_kit.rewrite.truths import truth_of
from paramgraph_kit.trace.errors import CaptureError


def captured(made: Any, given: tuple[Any, ...]) -> Rewriting:
    """What comes of a round in which nothing was found."""
    prover = Prover(made, given, {})
    try:
        truth = truth_of(prover)
        seen = prover.from_now().captured()
        wrong = [truth.unsteady] if truth.unsteady else truth.wrong(seen)
        how = "bit for bit" if not wrong and truth.is_bitwise(seen) else truth.closeness()
    except CaptureError as error:
        return Rewriting("", instead=[f"its capture fails: {error.failure.title} [{error.failure.code}]"])
    finally:
        prover.forget()
    if wrong:
        return Rewriting("", instead=[f"replays of one graph differ from eager: {wrong[0]}"])
    return Rewriting("", verified=[REPLAYED.format(how=how, where=driver().source().label())], complete=True)
