"""What containers hold, past what their classes make of being read or written.

A dict of somebody's may make an object each time that it is asked for one, count who asks, or refuse to be written.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

KINDS = (dict, list, tuple, deque, set, frozenset)


def kind_of(container: Any) -> Any:
    """Whose methods read and write a container as it lies."""
    if isinstance(container, OrderedDict):
        return OrderedDict
    return next(kind for kind in KINDS if isinstance(container, kind))


def length_of(container: Any) -> int:
    """How much it holds.

    >>> class Lazy(list):
    ...     def __len__(self):
    ...         raise RuntimeError("not loaded yet")
    >>> length_of(Lazy("ab"))
    2
    """
    length: int = kind_of(container).__len__(container)
    return length


def items_of(container: Any) -> list[tuple[Any, Any]]:
    """Keys with values of a dict, numbers with items of another container.

    >>> class Fresh(dict):
    ...     def __getitem__(self, key):
    ...         return object()
    >>> items_of(Fresh(a=1)), items_of([7])
    ([('a', 1)], [(0, 7)])
    """
    kind = kind_of(container)
    return list(kind.items(container) if isinstance(container, dict) else enumerate(kind.__iter__(container)))


def put_item(container: Any, key: Any, value: Any) -> None:
    """Let a dict, list or deque hold a value."""
    kind_of(container).__setitem__(container, key, value)


def refill(container: Any, contents: Mapping[Any, Any]) -> None:
    """Let a dict, list or deque hold these, all of them, in this order, and nothing else."""
    if isinstance(container, dict):
        kind = kind_of(container)
        if [key for key, _ in items_of(container)] != list(contents):
            kind.clear(container)
        for key, value in contents.items():
            kind.__setitem__(container, key, value)
    elif isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, contents.values())
    else:
        list.__setitem__(container, slice(None), contents.values())


def refill_set(container: set[Any], values: Iterable[Any]) -> None:
    """Let a set hold these and nothing else."""
    set.clear(container)
    set.update(container, values)
