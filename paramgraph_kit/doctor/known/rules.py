"""Which rule explains an exception: the first that matches, so narrow ones come first."""

from __future__ import annotations

from paramgraph_kit.doctor.known.compile_rules import SKIPS, TREES
from paramgraph_kit.doctor.known.cuda_rules import KNOWN, VAGUE
from paramgraph_kit.doctor.known.evidence import Evidence
from paramgraph_kit.doctor.known.misuse_rules import MISUSE
from paramgraph_kit.doctor.known.rule import Rule
from paramgraph_kit.doctor.known.sync_rules import PLACES, SYNCS

SPECIFIC = (*PLACES, *SYNCS, *MISUSE, *KNOWN, *TREES, *SKIPS)


def diagnose(evidence: Evidence, *, vague: bool = False) -> Rule | None:
    """The rule that explains one exception, or None; ``vague`` admits those that only know the error's code.

    The operation that raised decides alone. Where no rule knows that one, what it went through in libraries is asked,
    from the innermost outwards, and then the rest of its line.
    """
    exact = evidence.operations[:1] if evidence.exact else evidence.operations
    looks = [exact, *((name,) for name in evidence.inner), evidence.operations]
    for number, operations in enumerate(looks):
        for rule in SPECIFIC:
            # A rule without operations would swallow what a later look can tell better.
            if number < len(looks) - 1 and rule.code == "cpu-operand":
                continue
            if rule.matches(evidence, operations):
                return rule
    return next((rule for rule in VAGUE if vague and rule.matches(evidence, ())), None)
