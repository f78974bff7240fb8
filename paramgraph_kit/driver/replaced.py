"""Attributes that are another for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute made from the one that is there, until the block ends; one that was inherited is so again.

    >>> class Base:
    ...     size = 1
    >>> class Derived(Base): ...
    >>> with replaced(Derived, "size", lambda size: size + 1):
    ...     Derived.size, Base.size
    (2, 1)
    >>> Derived.size, "size" in vars(Derived)
    (1, False)
    """
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
