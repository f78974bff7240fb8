"""Tensors that a graph fills of the host's numbers, where these are others behind each launch: no such fill is one.

``torch.stack([torch.full((), s.tokens[-1]) for s in seqs])`` for ``torch.tensor([s.tokens[-1] for s in seqs])`` has
today's tokens for ever, once ``s.tokens.append(token)`` is done behind the launch.
"""

from __future__ import annotations

from collections.abc import Sequence

from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.source.ahead_of import named_by
from paramgraph_kit.rewrite.source.edits import heads
from paramgraph_kit.rewrite.ways import Ways

_MADE = ("tensor-literal", "copy-to-gpu", "scalar-assignment", "cpu-index")
WHY = "`{0}` gets another value behind each launch, and the graph would keep what was filled of it"


def frozen_fills(attempt: Ways, plans: Sequence[Plan], stale: str) -> list[Plan]:
    """Those plans that only fill something of what is moved behind the launch, as their lines tell."""
    found = list[Plan]()
    for plan in plans if stale else ():
        places = [attempt.place(f) for f in plan.failures if f.code in _MADE]
        reads = [at is not None and stale in named_by(at[0], heads(at[1])) for at in places]
        if len(reads) == len(plan.failures) and any(reads):
            found.append(plan)
    return found
