"""What a function does, with its optimizers as they are and in the forms that captures have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.counting import optimizers
from paramgraph_kit.rewrite.proving.proof import Prover, Truth


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
