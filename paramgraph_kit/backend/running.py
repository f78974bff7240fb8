"""What runs while a function is traced: the user's code, and what it asks of the world outside of the process."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from paramgraph_kit.backend.code_names import compares_types, is_foreign, is_foreign_module
from paramgraph_kit.backend.members import host_random
from paramgraph_kit.backend.world import BY_NAME, OF_STAND_INS, Questions, asks_for_others, is_measure
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.profiling import Collector, collector, set_profile
from paramgraph_kit.driver.select import twin
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Frame, Reason

# What sets or brings back a generator of torch's, or of the device's, and methods of each that do.
_SEEDING = (torch.manual_seed, torch.seed, torch.set_rng_state, torch.random.fork_rng)
_SEEDING_DEVICE = ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all")
_SETTING = frozenset(("manual_seed", "seed", "set_state", "set_offset", "graphsafe_set_state"))
_TORCH = os.path.dirname(torch.__file__)
_EVAL = os.path.join(_TORCH, "_dynamo", "eval_frame.py")
_BETWEEN = (
    *(os.path.join(_TORCH, *path) for path in (("random.py",), ("cuda", "random.py"), ("_compile.py",))),
    *(_EVAL, contextlib.__file__, os.path.join(_TORCH, "nn", "modules", "module.py")),
)
_COMPILED = "compile_wrapper"  # there, the code of all that torch.compile returns
# Of torch what computes; not what traces, which no function leads to.
_REPLACED = frozenset(
    ("torch", "torch._tensor", "torch.functional", "torch.autograd.function", "torch.utils.checkpoint")
)
_WITHIN = ("torch.nn.", "torch.distributions.")
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]  # of modules that are not there yet


def is_compiled_call(code: types.CodeType) -> bool:
    """Whether this is the code of all that ``torch.compile`` returns."""
    return code.co_name == _COMPILED and code.co_filename == _EVAL


@dataclass(slots=True)
class Running:
    """Code of the user's that ran, with its globals, and what it asks."""

    codes: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)
    torchs: dict[types.CodeType, dict[str, Any]] = field(default_factory=dict)  # of torch's what users replace
    drew: bool = False  # random numbers on the host
    seeded: Frame | None = None  # who set a generator of torch's
    compiled: Frame | None = None  # who called what torch.compile returned
    imported: set[str] = field(default_factory=set)  # modules that the user's code named while it ran
    collector: Collector = field(default_factory=Collector)
    questions: Questions = field(default_factory=lambda: Questions(lambda frame: not _is_foreign(frame), OF_STAND_INS))
    _known: dict[types.CodeType, bool] = field(default_factory=dict)
    _imports: int = 0  # under way

    def hook(self, frame: types.FrameType, event: str, function: Any) -> bool | None:
        """For ``sys.setprofile``; of a call, whether its code is the user's, None where each call of it matters."""
        if frame.f_code is _IMPORT:
            self._imports += (event == "call") - (event == "return")
        # What a module does when it is imported, and who finds it, is done once; a collection may come anywhere.
        if self._imports or self.collector.runs:
            return None
        if event == "call":
            code = frame.f_code
            if code not in self._known:
                self._known[code] = mine = not _is_foreign(frame) and code.co_name != "<module>"
                if mine:
                    self.codes[code] = frame.f_globals
                elif (name := str(frame.f_globals.get("__name__", ""))) in _REPLACED or name.startswith(_WITHIN):
                    self.torchs[code] = frame.f_globals
            if code is BY_NAME:
                if self._asker(frame) is not None:
                    self.imported.add(str(frame.f_locals.get("name")))
                return None
            if is_compiled_call(code):
                self.compiled = self.compiled or self._asker(frame)
                return None
            if is_measure(code):
                self.questions.measured(frame)
                return None
            if code not in _seeding():
                return self._known[code] or asks_for_others(code.co_filename)
            self.seeded = self.seeded or self._asker(frame)
        elif event == "c_call":
            self.questions.look(frame, function)
            if isinstance(getattr(function, "__self__", None), torch.Generator) and function.__name__ in _SETTING:
                self.seeded = self.seeded or self._line(frame)
        return None

    def _asker(self, frame: types.FrameType) -> Frame | None:
        """The user's line behind a function of torch's, None where torch asks for itself."""
        asker = frame.f_back
        while asker is not None and (asker.f_code.co_filename in _BETWEEN or asker.f_code in _seeding()):
            asker = asker.f_back
        return None if asker is None else self._line(asker)

    def _line(self, asker: types.FrameType) -> Frame | None:
        if _is_foreign(asker):
            return None
        return Frame(asker.f_code.co_filename, asker.f_lineno, asker.f_code.co_name)

    @property
    def refusal(self) -> RefusedError | None:
        """Why what ran cannot be a graph: it asked for the time, read a file or drew random numbers on the host."""
        if self.compiled is not None:
            text = "it calls what torch.compile returned, which keeps graphs of its own"
            text = f"{text}: compile or parameterize the whole"
            return RefusedError(Reason("not-traceable", text, self.compiled))
        if self.drew:
            return host_random()
        if self.seeded is not None:
            text = "it sets a random generator, which a graph would not do again: set it before the call"
            return RefusedError(Reason("host-random", text, self.seeded))
        for code in self.codes:
            if (at := compares_types(code)) is not None:
                text = "it compares the type of a tensor, and traced ones are of another: use isinstance"
                return RefusedError(Reason("not-traceable", text, Frame(code.co_filename, at, code.co_name)))
        if (reason := self.questions.reason) is not None:
            return RefusedError(reason)
        return None


@cache
def _seeding() -> frozenset[types.CodeType]:
    """The code of all that sets a generator; methods that C has are told by their names."""
    device = twin()
    found = [*_SEEDING, *(getattr(torch.cuda, name) for name in _SEEDING_DEVICE)]
    found += [getattr(device, name) for name in _SEEDING_DEVICE if hasattr(device, name)]
    found += [getattr(type(each), name, None) for each in device.default_generators for name in _SETTING]
    codes = [getattr(inspect.unwrap(each), "__code__", None) for each in found if each is not None]
    return frozenset(code for code in codes if code is not None)


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
        native = checks()
        if native is not None:  # a fifth of the time
            native.profile(found.hook, _IMPORT)
        else:
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
