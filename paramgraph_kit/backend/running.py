"""What runs while a function is traced: the user's code, and what it asks of the world outside of the process."""

from __future__ import annotations

import builtins
import datetime
import importlib
import os
import random
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paramgraph_kit.backend.code_names import is_foreign, is_foreign_module
from paramgraph_kit.driver.profiling import Collector, collector, set_profile
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Frame, Reason

# Functions that answer otherwise at each call.
_OUTSIDE = frozenset(
    (
        *(time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns),
        *(time.process_time, time.localtime, datetime.datetime.now, datetime.datetime.today, datetime.date.today),
        *(os.urandom, os.getcwd, os.listdir, os.stat, builtins.open, builtins.input),
    )
)
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]  # of modules that are not there yet


@dataclass(slots=True)
class Running:
    """Code of the user's that ran, with its globals, and the first question to the outside."""

    codes: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)
    asked: tuple[str, Frame] | None = None
    drew: bool = False  # random numbers on the host
    collector: Collector = field(default_factory=Collector)
    _known: dict[types.CodeType, bool] = field(default_factory=dict)
    _imports: int = 0  # under way

    def hook(self, frame: types.FrameType, event: str, function: Any) -> None:
        """For ``sys.setprofile``."""
        if frame.f_code is _IMPORT:
            self._imports += (event == "call") - (event == "return")
        # What a module does when it is imported, and who finds it, is done once; a collection may come anywhere.
        if self._imports or self.collector.runs:
            return
        if event == "call":
            code = frame.f_code
            if code not in self._known:
                self._known[code] = mine = not _is_foreign(frame) and code.co_name != "<module>"
                if mine:
                    self.codes[code] = frame.f_globals
        elif event == "c_call" and self.asked is None and self._known.get(frame.f_code):
            try:
                outside = function in _OUTSIDE
            except TypeError:  # a method of what cannot be hashed
                return
            if outside:
                line = Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                self.asked = getattr(function, "__qualname__", str(function)), line

    @property
    def refusal(self) -> RefusedError | None:
        """Why what ran cannot be a graph: it asked for the time, read a file or drew random numbers on the host."""
        if self.drew:
            text = "it draws random numbers on the host, which a graph would not draw again: draw them on the device"
            return RefusedError(Reason("host-random", text))
        if self.asked is not None:
            name, line = self.asked
            return RefusedError(Reason("outside-state", f"it asks {name}, which would be asked only once", line))
        return None


def _is_foreign(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<"):  # made from text: its module tells
        name = str(frame.f_globals.get("__name__", ""))
        return not name or name.startswith("namedtuple_") or is_foreign(file) or is_foreign_module(name)
    return is_foreign(file)


@contextmanager
def running() -> Iterator[Running]:
    """Note what runs on this thread in the block; random numbers of the host are put back."""
    before, drawn = sys.getprofile(), _drawn()
    with collector() as collects:
        found = Running(collector=collects)
        sys.setprofile(found.hook)
        try:
            yield found
        finally:
            set_profile(before)
            found.drew = _put_back(drawn)


def _drawn() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _put_back(before: tuple[Any, Any]) -> bool:
    """Whether the generators have moved; if so, they are where they were."""
    python, numpy = before
    now: Any = np.random.get_state()
    same_numpy = now[2] == numpy[2] and bool((now[1] == numpy[1]).all())
    if random.getstate() == python and same_numpy:
        return False
    random.setstate(python)
    np.random.set_state(numpy)
    return True
