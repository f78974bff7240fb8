"""Whether something has used the device yet, as what initialises CUDA does: programs can tell."""

from __future__ import annotations

from collections.abc import Callable


class _Use:
    yet = False
    at_first: Callable[[], None] | None = None


def in_use() -> bool:
    """Whether the device has been used."""
    return _Use.yet


def use() -> None:
    """The device is in use from here on."""
    if not _Use.yet:
        _Use.yet = True
        if _Use.at_first is not None:
            _Use.at_first()


def at_first_use(run: Callable[[], None]) -> None:
    """What the first use does."""
    _Use.at_first = run
