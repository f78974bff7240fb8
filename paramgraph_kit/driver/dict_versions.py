"""Dynamo's guard for a dictionary that nobody has written since, in one call of C++ whatever its size."""

from __future__ import annotations

from typing import Any


def guard_version(manager: Any, contents: dict[Any, Any], what: str) -> None:
    """Let a guard manager pass only while ``contents`` is this dictionary, unwritten; ``what`` is for its messages."""
    try:
        manager.add_dict_version_guard(contents, [what], None)
    except TypeError:  # some versions of torch do not take the user's stack
        manager.add_dict_version_guard(contents, [what])
