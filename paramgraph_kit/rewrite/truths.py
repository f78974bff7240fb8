"""What a function does, with its optimizers as they are and in the forms that captures have."""

from __future__ import annotations

from functools import partial

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.proving.proof import Prover, Truth


def truth_of(prover: Prover) -> Truth:
    """What runs of a rewritten function are compared with."""
    found = optimizers.found_in(prover.state)
    ways = [(rate, fuse) for fuse in (False, True) for rate in (False, True)] if found else []
    forms = [partial(optimizers.prepared, found, device(), rate=rate, fuse=fuse) for rate, fuse in ways]
    return Truth(prover, forms=forms)
