"""Questions of the user's code to the world outside of the process: the time, files, who called. Answers change."""

from __future__ import annotations

import builtins
import datetime
import importlib
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
from paramgraph_kit.trace.model import Frame, Reason

_OUTSIDE = frozenset(
    (
        *(time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns),
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

    @property
    def reason(self) -> Reason | None:
        """Why a graph cannot do what was called."""
        if self.asked is None:
            return None
        name, line = self.asked
        return Reason("outside-state", f"it asks {name}, which would be asked only once", line)
