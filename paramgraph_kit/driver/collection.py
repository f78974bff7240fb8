"""Captures without Python's garbage collector, and many runs in which it looks at nothing that was there before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_aside = False  # whether what was there is set aside by us
OF_PYTHON_S = 2_000  # fewer are nobody's: Python 3.12 sets aside what never dies, some 400 objects
_others = False  # whether somebody else had: asked until then, for to count what is set aside takes 0.04 s


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector: a graph that it destroys during a capture spoils that (pytorch#161037).

    The words of a graph set it off as well, and it walks through all that torch has compiled.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def only_new() -> Iterator[None]:
    """Collect only what is made in the block: all that torch and its compiler have made takes 0.2 s to look at.

    What the block has left in circles is gone after it. Who has set objects aside with ``gc.freeze()`` keeps them so.
    """
    global _aside, _others
    _others = _others or (not _aside and gc.get_freeze_count() > OF_PYTHON_S)
    ours = not (_aside or _others)
    if ours:
        gc.collect()
        gc.freeze()
        _aside = True
    try:
        yield
    finally:
        _twice()  # circles of trials hold a loss, for which the next backward pass would wait
        if ours:
            everything()


def everything() -> None:
    """End that early, for ``gc.get_objects()`` and ``gc.get_referrers()``, which do not see what is set aside."""
    global _aside
    if _aside:
        _aside = False
        gc.unfreeze()


def circles() -> None:
    """Collect all circles, those among what is set aside too: of a call that failed they hold its autograd graph."""
    everything()
    _twice()


def _twice() -> None:
    for _ in range(2):  # what compiled code or a failure has held is a circle only when that is gone
        gc.collect()
