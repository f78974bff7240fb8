"""Whether enough of a step is in its graph."""

from __future__ import annotations

from paramgraph_kit.rewrite.proving.proof import Prover

ENOUGH = 4  # operations in a graph, of a step without products whose rest may run behind it


def is_mostly_inside(prover: Prover) -> bool:
    """Whether more of a step is in the graph than behind it."""
    (inside, behind), products = prover.operations, prover.products
    return products[0] >= products[1] if any(products) else inside >= behind
