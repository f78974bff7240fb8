"""Whether anybody has written some dictionaries since, whatever their size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.torch_names import torch_name


class Versions:
    """Of dictionaries, as they were when this was made.

    Dynamo's guards take 20 to 200 ns for each. C++, where it is built, asks all versions in one loop, and from Python
    3.12 on it is told of writes and has nothing to ask.

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
        self._native = checks()
        if self._native is not None:
            self._watch = self._native.watch(tuple(self._dicts))
            return
        root = torch_name("RootGuardManager")()
        kind = torch_name("GuardManagerType").GUARD_MANAGER
        for n, each in enumerate(self._dicts):
            item = root.list_getitem_manager(key=n, source=f"dicts[{n}]", example_value=each, guard_manager_enum=kind)
            _guard_version(item, each)
        self._check = root.check

    def __call__(self) -> bool:
        """Whether nobody has written any of them since."""
        if self._native is not None:
            return bool(self._native.unwritten(self._watch))
        native = checks()
        watch = native.watch(tuple(self._dicts)) if native is not None else None
        if not self._check(self._dicts):  # asked for second: nothing was written before the watch began
            return False
        self._native, self._watch = native, watch
        return True


def _guard_version(manager: Any, contents: dict[Any, Any]) -> None:
    """Let a guard manager pass only while ``contents`` is this dictionary, unwritten."""
    what = "what a call depends on"
    try:
        manager.add_dict_version_guard(contents, [what], None)
    except TypeError:  # some versions of torch do not take the user's stack
        manager.add_dict_version_guard(contents, [what])
