"""What is said of a rewriting that is right, and has so little of a step in its graph that a launch may not pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paramgraph_kit.rewrite.own_launches import is_thin
from paramgraph_kit.rewrite.proving.proof import Prover
from paramgraph_kit.rewrite.proving.worth import ENOUGH
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.ways import Ways

LITTLE = "this is right, but with so little in its graph it may be no faster: what stands below brings more there"
HARDLY = (
    "this is right, but a launch of so little costs what it saves, so a graph does not pay here: leave the step as it "
    "is, unless what stands below brings more there"
)


def tell_little(found: Rewriting) -> None:
    """Say of a whole rewriting that most of the step runs behind its graph, and that nothing brings more there."""
    found.is_little = True
    said = told_of_little(found).partition(", unless" if is_thin(found) else ":")[0]
    found.verified += [each for each in (found.worth.told, said) if each not in found.verified]


def tell_share(found: Rewriting) -> None:
    """Say of a whole rewriting how much of the step is in its graph, where the launch lacks something."""
    if found.complete and found.worth.is_worth_telling and found.worth.told not in found.verified:
        found.verified.append(found.worth.told)


def told_of_little(found: Rewriting) -> str:
    """What is said of a rewriting with so little in its graph."""
    return HARDLY if is_thin(found) else LITTLE


def with_more(
    behind: int,
    best: Rewriting,
    one: Callable[[Ways], Rewriting],
    ways: Sequence[Callable[[], Ways | None]],
    is_late: Callable[[], bool],
) -> Rewriting:
    """A whole rewriting with so much of a step behind the launch, or another one that has more in its graph."""
    for way in ways:
        if behind >= ENOUGH and not is_late() and (other := way()) is not None and (made := one(other)).complete:
            inside, left = other.prover.operations
            best, behind = (made, left) if left < behind and inside > left else (best, behind)
    return best


def is_worth_it(prover: Prover, found: Rewriting) -> bool:
    """Whether enough of what a step does is in the graph; notes how much."""
    (inside, behind), products = prover.operations, prover.products
    if not any(prover.operations):  # where it was run last, to see what comes later, it has ended early
        (inside, behind), products = found.worth[:2], [*found.worth[2:4]]
    if behind:
        found.verified.append(found.worth.told)
    if any(products):
        return products[0] >= products[1] and products[0] > 0
    return inside >= ENOUGH or 2 * behind <= inside > 0  # of views alone there is nothing to launch
