"""What containers hold, past what their classes make of being read or written.

A dict of somebody's may make an object each time that it is asked for one, count who asks, or refuse to be written.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any


def items_of(container: Any) -> list[tuple[Any, Any]]:
    """Keys with values of a dict, numbers with items of a list or deque.

    >>> class Fresh(dict):
    ...     def __getitem__(self, key):
    ...         return object()
    >>> items_of(Fresh(a=1)), items_of([7])
    ([('a', 1)], [(0, 7)])
    """
    if isinstance(container, dict):
        return list(_dict(container).items(container))
    kind: Any = next(k for k in (list, deque, set) if isinstance(container, k))
    return list(enumerate(kind.__iter__(container)))


def put_item(container: Any, key: Any, value: Any) -> None:
    """Let a dict, list or deque hold a value."""
    kind = _dict(container) if isinstance(container, dict) else list if isinstance(container, list) else deque
    kind.__setitem__(container, key, value)


def refill(container: Any, contents: Mapping[Any, Any]) -> None:
    """Let a dict, list or deque hold these, all of them, in this order, and nothing else."""
    if isinstance(container, dict):
        kind = _dict(container)
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


def _dict(container: dict[Any, Any]) -> Any:
    return OrderedDict if isinstance(container, OrderedDict) else dict
