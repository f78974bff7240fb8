"""Whether anybody has written some dictionaries since, whatever their size."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.torch_names import torch_name

# Python 3.13 sets attributes of objects without telling who watches the dictionary of them (3.13.0: setattr, delattr).
TOLD = sys.version_info < (3, 13)
# From 3.12 on a dictionary has no number of its own, and Dynamo, which then counts what it is told of, leaves out that
# an empty one is filled from another (``update`` and ``|=``: pytorch 2.11, PyDict_EVENT_CLONED).
NUMBERED = sys.version_info < (3, 12)


class Versions:
    """Of dictionaries, as they were when this was made.

    Dynamo's guards take 20 to 200 ns for each. C++, where it is built, asks all versions in one loop, and in Python
    3.12 it is told of writes and has nothing to ask. Where neither tells of all, what they hold is compared.

    >>> dicts = [{}, {"a": 1}]
    >>> versions = Versions(dicts)
    >>> versions()
    True
    >>> dicts[1]["a"] = 2
    >>> versions()
    False
    """

    def __init__(self, dicts: Sequence[dict[Any, Any]]) -> None:
        self._dicts = list(dicts)
        self._ask: Callable[[], bool] | None = None
        self.check: Any = None  # for ``unchanged`` of the module in C++, once that has looked
        self._check: Callable[[Any], bool] = self._holds
        native = checks()
        told = TOLD and (NUMBERED or native is not None)
        self._held = [] if told else [(list(each), list(each.values())) for each in self._dicts]
        if native is not None:
            self.check, self._ask = self._asked_of(native)
        elif told:
            self._check = _guards(self._dicts)

    def __call__(self) -> bool:
        """Whether nobody has written any of them since."""
        if self._ask is not None:
            return self._ask()
        native = checks()
        check, ask = self._asked_of(native) if native is not None else (None, None)
        if not self._check(self._dicts):  # asked for second: nothing was written before C++ looked
            return False
        self.check, self._ask = check, ask
        return True

    def _asked_of(self, native: Any) -> tuple[Any, Callable[[], bool]]:
        dicts = tuple(self._dicts)
        if TOLD:
            watch, unwritten = native.watch(dicts), native.unwritten
            return watch, lambda: bool(unwritten(watch))
        contents, holds = native.contents(dicts), native.holds
        return contents, lambda: bool(holds(contents))

    def _holds(self, dicts: Sequence[dict[Any, Any]]) -> bool:
        return all(
            len(each) == len(keys) and all(map(is_, each, keys)) and all(map(is_, each.values(), values))
            for each, (keys, values) in zip(dicts, self._held, strict=True)
        )


def _guards(dicts: Sequence[dict[Any, Any]]) -> Callable[[Any], bool]:
    """Dynamo's, for the list of them."""
    root = torch_name("RootGuardManager")()
    kind = torch_name("GuardManagerType").GUARD_MANAGER
    for n, each in enumerate(dicts):
        item = root.list_getitem_manager(key=n, source=f"dicts[{n}]", example_value=each, guard_manager_enum=kind)
        what = "what a call depends on"
        try:
            item.add_dict_version_guard(each, [what], None)
        except TypeError:  # some versions of torch do not take the user's stack
            item.add_dict_version_guard(each, [what])
    check: Callable[[Any], bool] = root.check
    return check
