"""Other threads while one traces: torch notes in one place for all of them that somebody does.

A call of a function that torch.compile has compiled asks there, and raises ("Detected that you are using FX to
symbolically trace a dynamo-optimized function") although it is traced by nobody. And who notes it in another thread at
the same time puts back what was there before, which would then stay for good.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from paramgraph_kit.driver.torch_names import torch_name

_FLAG = "_is_fx_tracing_flag"


class _Mine:
    """True in one thread, until its trace is over."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def __bool__(self) -> bool:
        return self.thread == threading.get_ident()


class _Instead(types.ModuleType):
    """A module as it is, but for some of its names."""

    def __init__(self, module: types.ModuleType, **names: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(names)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


_mine = threading.local()


@contextmanager
def others_undisturbed() -> Iterator[None]:
    """Let compiled functions run in other threads as ever while the block traces in this one."""
    thread, place, plain = threading.get_ident(), _symbolic_trace(), torch.compiler.is_compiling

    def is_compiling() -> bool:  # whoever asks here only wants to know whether a trace is its own
        return threading.get_ident() != thread or plain()

    compiler = _Instead(torch.compiler, is_compiling=is_compiling)
    _mine.flag = flag = _Mine()
    try:
        with mock.patch.object(place, "torch", _Instead(torch, compiler=compiler)):
            yield
    finally:
        flag.thread = _mine.flag = None


def note_whose() -> None:
    """Called in a trace: what is noted for all threads is true in this one."""
    place, flag = _symbolic_trace(), getattr(_mine, "flag", None)
    if flag is not None and getattr(place, _FLAG, None) is True:  # newer torch keeps it by thread itself
        setattr(place, _FLAG, flag)


def _symbolic_trace() -> types.ModuleType:
    return sys.modules[torch_name("is_fx_symbolic_tracing").__module__]
