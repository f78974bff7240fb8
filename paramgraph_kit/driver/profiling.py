"""Hooks on the calls of this thread that give a profiler its place back."""

from __future__ import annotations

import sys
from typing import Any


def set_profile(hook: Any) -> None:
    """``sys.setprofile``, also for what ``sys.getprofile`` returned where a profiler written in C (cProfile) ran."""
    if hook is None or callable(hook):
        sys.setprofile(hook)
    else:
        hook.enable()
