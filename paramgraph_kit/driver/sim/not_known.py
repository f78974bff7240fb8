"""What nobody knows without a GPU, said at the moment when a program's numbers or its errors depend on it.

It goes on with one of the possible outcomes. Whoever listens (a trace, ``diagnose``) is told; else a warning tells of
it, once for a line of the user's.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paramgraph_kit.driver.recorders import Line, recording

ASSERTED = (
    "what comes next: on a GPU a value out of range fails at a later wait, with a device-side assert, and nothing "
    "works there from then on"
)
_BEYOND = re.compile(r"(index|[Tt]arget) .*out of (bounds|range)|elements of (input|target) should be between 0 and 1")
Tell = Callable[[str, Line | None], None]
_listeners: list[Tell] = []
_shown: dict[str, dict[str | tuple[str, type[Warning], int], int]] = {}  # warnings, by file


class NotKnownWarning(UserWarning):
    """What comes next is another one on a GPU, perhaps."""


def not_known(what: str) -> None:
    """Say that the simulated device does not know something of a GPU, on which what runs now depends."""
    text = f"the simulated device does not know {what}"
    line = recording(sys._getframe(1))[1]
    if _listeners:
        for tell in [*_listeners]:
            tell(text, line)
        return
    file, number = line or ("<unknown>", 0)
    warnings.warn_explicit(text, NotKnownWarning, file, number, registry=_shown.setdefault(file, {}))


@contextmanager
def listening(tell: Tell) -> Iterator[None]:
    """Be told instead of warned."""
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


def doubt_beyond(error: Exception) -> None:
    """Say that with an eager kernel's error which is for a value alone: a GPU has launched it by then."""
    if not _BEYOND.search(str(error)):
        return
    try:
        not_known(ASSERTED)
    except NotKnownWarning as told:  # where warnings are errors, it must not take the place of this one
        error.add_note(str(told))
