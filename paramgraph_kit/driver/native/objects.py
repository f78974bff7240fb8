"""Of which classes objects are and which dictionaries they have, asked at each call: assigning these writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from paramgraph_kit.driver.native.build import checks

_attribute = object.__getattribute__


def dictionary_of(thing: Any) -> dict[str, Any] | None:
    """The dictionary of its attributes, whatever its class makes of ``__dict__``; None if it has none.

    >>> dictionary_of(lambda: 1), dictionary_of(1)
    ({}, None)
    """
    try:
        found = _attribute(thing, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if isinstance(found, dict) else None


class Kinds:
    """Classes and dictionaries of some objects as they were when this was made; it holds the objects.

    >>> class One: pass
    >>> class Other: pass
    >>> thing = One()
    >>> kinds = Kinds([thing])
    >>> kinds.same()
    True
    >>> thing.__class__ = Other
    >>> kinds.same()
    False
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = list(objects)
        self._types = list(map(type, self._objects))
        self._dicts = list(map(dictionary_of, self._objects))
        with_one = [(o, d) for o, d in zip(self._objects, self._dicts, strict=True) if d is not None]
        self._owners, self._owned = [o for o, _ in with_one], [d for _, d in with_one]
        self._check: Any = None

    @property
    def check(self) -> Any:
        """For ``unchanged`` of the module in C++; None until that is built. Whoever has it holds this, too."""
        if self._check is None and (native := checks()) is not None:
            self._check = native.kinds(self._objects, self._types, self._dicts)
        return self._check

    def same(self) -> bool:
        """Whether all of them are what they were."""
        native = checks()
        if native is not None:
            return bool(native.unchanged((self.check,)))
        return all(map(is_, map(type, self._objects), self._types)) and all(
            map(is_, map(dictionary_of, self._owners), self._owned)
        )
