"""Which class of failure explains an exception: what asks for most is tried first."""

from __future__ import annotations

from functools import lru_cache

from paramgraph_kit.doctor.known.catalogue import CLASSES
from paramgraph_kit.doctor.known.evidence import Evidence
from paramgraph_kit.doctor.known.failure_class import FailureClass

SPECIFIC = sorted(((sign, each) for each in CLASSES for sign in each.signs), key=lambda pair: -pair[0].weight)
VAGUE = sorted(((sign, each) for each in CLASSES for sign in each.vague), key=lambda pair: -pair[0].weight)


@lru_cache(1024)  # a line that runs in each round is looked at in each of them
def recognise(evidence: Evidence, *, vague: bool = False) -> FailureClass | None:
    """The class of one exception, or None; ``vague`` admits those that only know the error's code.

    The operation that raised decides alone. Where nothing knows that one, what it went through in libraries is asked,
    from the innermost outwards, and then the rest of its line.
    """
    exact = evidence.operations[:1] if evidence.exact else evidence.operations
    looks = [exact, *((name,) for name in evidence.inner), evidence.operations]
    for number, operations in enumerate(looks):
        for sign, each in SPECIFIC:
            if (not sign.last or number == len(looks) - 1) and sign.matches(evidence, operations):
                return each
    return next((each for sign, each in VAGUE if vague and sign.matches(evidence, ())), None)
