"""Where states of optimizers and scales are made first: an examination puts them back between its calls."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class Beginnings:
    """What is made when it is needed first, over all calls of one examination.

    Python's numbers go on from call to call, as `self.calls += 1` does, and such states do not. So a capture may meet
    none although the calls before it have made it: what counts is where the first call has left it that made it.
    """

    def __init__(self) -> None:
        self._known: Any = weakref.WeakKeyDictionary[Any, dict[int, tuple[object, bool]]]()

    def note(self, owner: Any, parts: Iterable[int], call: object, *, captured: bool) -> bool:
        """Parts of it are about to be made; returns whether a capture makes one that no earlier call has made."""
        known = self._known.setdefault(owner, {})
        inside = False
        for part in parts:
            first, made_inside = known.get(part, (call, captured))
            if first is call:  # who empties it behind a warm-up has it made once more
                known[part] = call, captured
                made_inside = captured
            inside |= captured and made_inside
        return inside
