"""Gradients that replays add to and that a line between them zeroes: that line is the problem, where it sets None."""

from __future__ import annotations

import re
from collections.abc import Iterable

from paramgraph_kit.trace.model import Failure

ADDED = "parameters have gradients when the capture begins, and each replay adds to them"
_ZERO = re.compile(r"(\w+)\.zero_grad\(")


def without_added(problems: Iterable[Failure]) -> list[Failure]:
    """The same without what such a line zeroes in place once it is mended: several replays may add up by design.

    >>> told = [Failure("gradients-accumulate", "", ADDED, fix="after   self.opt.zero_grad(set_to_none=True) ...")]
    >>> told += [Failure("gradients-rebound", "", "", fix="before  trainer.opt.zero_grad()")]
    >>> [each.code for each in without_added(told)]
    ['gradients-rebound']
    """
    every = [*problems]
    zeroed = {name for f in every if f.code == "gradients-rebound" for name in _ZERO.findall(f.fix)}
    added = [f for f in every if f.code == "gradients-accumulate" and f.message == ADDED]
    alone = len(added) == 1 and len(zeroed) == 1  # a module may zero what its optimizer steps with
    gone = added if alone else [f for f in added if not zeroed.isdisjoint(_ZERO.findall(f.fix))]
    return [f for f in every if f not in gone]
