"""What waits in a ``queue.SimpleQueue``: none of its methods shows it, and the garbage collector has to know it."""

from __future__ import annotations

import gc
import queue
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

_IN_A_LIST = sys.version_info < (3, 13)  # its own, with None where entries were taken; since then in no list
_seen: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def waiting_in(held: queue.SimpleQueue[Any]) -> list[Any]:
    """Its entries, and nothing is taken; those of a class that goes its own way are not known."""
    size = held.qsize() if type(held) is queue.SimpleQueue else 0
    return list_of(held)[-size:] if size else []


def list_of(held: queue.SimpleQueue[Any]) -> list[Any]:
    """A list that is the same for one queue, and has what waits there at its end."""
    parts = [each for each in gc.get_referents(held) if each is not type(held)]
    if _IN_A_LIST:
        return next((each for each in parts if type(each) is list), [])
    seen = _seen.setdefault(held, [])
    seen[:] = parts
    return seen


def refill(held: queue.SimpleQueue[Any], entries: Iterable[Any]) -> None:
    """Let these wait there, and no others."""
    with suppress(queue.Empty):
        while True:
            held.get_nowait()
    for each in entries:
        held.put(each)
