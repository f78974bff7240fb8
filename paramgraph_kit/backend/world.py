"""Questions of the user's code to the world outside of the process: the time, files, who called. Answers change."""

from __future__ import annotations

import builtins
import datetime
import importlib
import inspect
import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.select import twin
from paramgraph_kit.trace.model import Frame, Reason

_OUTSIDE = frozenset(
    (
        *(time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns),
        *(time.thread_time, time.thread_time_ns, time.clock_gettime, time.clock_gettime_ns, time.gmtime, time.ctime),
        *(time.strftime, os.times, os.getloadavg),
        *(time.process_time, time.localtime, datetime.datetime.now, datetime.datetime.today, datetime.date.today),
        *(datetime.datetime.utcnow, os.urandom, os.getcwd, os.listdir, os.scandir, os.stat, os.lstat, os.open),
        *(builtins.open, builtins.input, sys._getframe),
    )
)
OF_STAND_INS = _OUTSIDE | {id}  # that of a real tensor is another
BY_NAME = importlib.import_module.__code__  # what it is given is in no code
# Code that asks for others: who called it asks.
_OF_PYTHON = ("pathlib", "genericpath.py", "posixpath.py", "ntpath.py", "os.py", "io.py", "codecs.py", "shutil.py",
              "glob.py", "inspect.py", "random.py", "secrets.py", "uuid.py", "tempfile.py", "datetime.py")  # fmt: skip
_FOLDERS = (
    *(os.path.join(os.path.dirname(os.__file__), name) for name in _OF_PYTHON),
    *("<frozen genericpath>", "<frozen posixpath>", "<frozen ntpath>", "<frozen os>", "<frozen codecs>"),
    os.path.join(os.path.dirname(np.__file__), "lib"),
    str(Path(torch.__file__).parent / "serialization.py"),
)


# How much memory the device has left, which differs from call to call.
_MEASURES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
             "memory_stats_as_nested_dict", "memory_snapshot", "memory_summary", "mem_get_info", "device_memory_used",
             "utilization", "memory_usage", "temperature", "power_draw", "clock_rate")  # fmt: skip


@cache
def _measures() -> dict[types.CodeType, str]:
    """The code of what tells how much memory there is, or how busy the device is, and its name."""
    found = [(name, getattr(module, name, None)) for module in (torch.cuda, twin()) for name in _MEASURES]
    codes = [(getattr(inspect.unwrap(each), "__code__", None), name) for name, each in found if each is not None]
    return {code: name for code, name in codes if code is not None}


def is_measure(code: types.CodeType) -> bool:
    """Whether this is the code of a function of ``torch.cuda`` that tells how much memory there is.

    >>> is_measure(torch.cuda.memory_allocated.__code__)
    True
    """
    return code in _measures()


@cache
def asks_for_others(file: str) -> bool:
    """Whether what a file asks is asked by whoever calls it.

    >>> asks_for_others(os.__file__), asks_for_others("train.py")
    (True, False)
    """
    return file.startswith(_FOLDERS)


@dataclass(slots=True)
class Questions:
    """The first question of a call to the outside, and the line that asks."""

    is_users: Callable[[types.FrameType], bool]
    outside: frozenset[Any] = _OUTSIDE
    asked: tuple[str, Frame] | None = None

    def look(self, frame: types.FrameType, function: Any) -> None:
        """Some code calls a function of C."""
        try:
            outside = self.asked is None and function in self.outside
        except TypeError:  # a method of what cannot be hashed
            return
        asker: types.FrameType | None = frame if outside else None
        while asker is not None and asks_for_others(asker.f_code.co_filename):
            asker = asker.f_back
        if function is sys._getframe and asker is not None and is_library(asker.f_code.co_filename):
            return  # for the place of a warning
        if asker is not None and self.is_users(asker):
            line = Frame(asker.f_code.co_filename, asker.f_lineno, asker.f_code.co_name)
            self.asked = getattr(function, "__qualname__", str(function)), line

    def measured(self, frame: types.FrameType) -> None:
        """Some code calls what ``is_measure``."""
        asker = frame.f_back
        if self.asked is None and asker is not None and self.is_users(asker):
            line = Frame(asker.f_code.co_filename, asker.f_lineno, asker.f_code.co_name)
            self.asked = f"torch.cuda.{_measures()[frame.f_code]}", line

    @property
    def reason(self) -> Reason | None:
        """Why a graph cannot do what was called."""
        if self.asked is None:
            return None
        name, line = self.asked
        return Reason("outside-state", f"it asks {name}, which would be asked only once", line)
