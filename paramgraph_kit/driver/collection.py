"""Captures without Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
