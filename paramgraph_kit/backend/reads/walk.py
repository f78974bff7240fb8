"""What a traced function may read beside its arguments, found by name from the code that runs.

From the function to its globals, closures and defaults, from there to the functions, classes, modules and objects that
it names, and on to what these name. That is more than is read, so a change may cost a trace; what cannot be told is
refused by name. A function that did not run while tracing is not looked into.
"""

from __future__ import annotations

import contextvars
import functools
import operator
import threading
import types
import weakref
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import nn

from paramgraph_kit.backend.asked import (
    ANSWERS,
    decimals,
    hooks_of_all,
    nbytes,
    questions,
    registered,
)
from paramgraph_kit.backend.code_names import all_names
from paramgraph_kit.backend.functions import ABSENT, Rows, Torchs
from paramgraph_kit.backend.raw import KINDS
from paramgraph_kit.backend.reads.code import OfCode, Ran
from paramgraph_kit.backend.reads.objects import ALONE, OfObjects
from paramgraph_kit.backend.watched import MISSING, Watched
from paramgraph_kit.driver.host_random import is_of_host
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

# Of these modules: what other threads and processes write, or what goes out; a call must not put it back.
_SHARED = ("threading", "_thread", "queue", "concurrent", "multiprocessing", "asyncio", "logging")
_OPAQUE = (types.CodeType, types.FrameType, types.GenericAlias, types.UnionType, types.BuiltinFunctionType,
           types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType,
           types.MemberDescriptorType, types.ClassMethodDescriptorType, torch._ops.OperatorBase,
           torch._ops.OpOverloadPacket)  # fmt: skip
_OURS = "paramgraph_kit."
MOST = 20_000  # values: more than these would take longer to look at in each call than a graph saves
_CALLED = (types.FunctionType, types.BuiltinFunctionType)
_PARTS_OF_PARTIAL = operator.attrgetter("func", "args", "keywords")
_TRIED = ("getattr", "hasattr", "AttributeError", "vars", "__dict__")  # who looks for attributes that are not there
_HELD = (torch.Tensor, nn.Module, types.FunctionType, types.MethodType, type, np.ndarray, threading.local, *KINDS)


class Walk(OfCode, OfObjects):
    """One walk from a function."""

    def __init__(
        self, roots: Sequence[Any], ran: Set[types.CodeType] | None, known: frozenset[str], every: bool
    ) -> None:
        super().__init__(ran, known, every)
        for root in roots:
            self.key.append(self.look(root, ""))
        for name, hooks in hooks_of_all():
            self.key.append(self.look(hooks, name))
        self._drain()
        self._referred()
        if self._decimals:
            self._ask("the context of decimals", decimals)
        if self._abstract:
            self._ask("who counts as an instance of abstract classes", registered)
        self._drain()
        for path in self.by_types if ran is not None else ():
            if path.rpartition(".")[2].partition("[")[0] in self.asking:
                text = f"{path} is a table by types of tensors, and traced ones are of another: use isinstance"
                raise RefusedError(Reason("not-traceable", text))

    def _drain(self) -> None:
        while self._queue:
            value, path = self._queue.popleft()
            self._visit(value, path)
            if len(self.key) > MOST and self._ran is None:  # the nearest are the likeliest to be written
                break
            if len(self.key) > MOST:
                text = f"it may read more than {MOST:,} values that are no arguments (the last: {path})"
                raise RefusedError(Reason("too-much-state", f"{text}: give it what it needs as arguments"))

    def _referred(self) -> None:
        """Look at what weak references lead to, and hold none of it: the user's code may ask whether it lives."""
        members = {id(x) for _, m in self.modules for x in (*m._parameters.values(), *m._buffers.values())}
        while self._weak:
            path, reference = self._weak.popleft()
            if (value := reference()) is None or id(value) in members:
                continue
            if id(value) not in self._numbers:
                if isinstance(value, _HELD) or questions(value) or nbytes(value):
                    self._refuse(path, ALONE)
                    continue
                self._weakly.add(id(value))
            self.key.append(self.look(value, path))
            self._drain()

    def functions(self, torchs: Torchs) -> None:
        """Look at functions of torch's where code that ran finds them."""
        replaced = set[tuple[str, str, Any]]()
        for row in Rows(torchs.ran.items(), self.names.union(*map(all_names, torchs.ran))):
            keys, values = tuple(row.found), tuple(row.found.values())
            values = tuple([MISSING if value is ABSENT else value for value in values])
            self.watched.append(Watched(row.name, "functions", row.holder, keys, values, versioned=True))
            replaced.update(torchs.replaced(row))
        self.key.append(frozenset(replaced))  # which holds them, so that no other has their place in memory

    def _visit(self, value: Any, path: str) -> None:
        if type(value) in _CALLED and value in ANSWERS:
            self._ask(f"{path}()", ANSWERS[value])
        if isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            if "_version" in self.names:
                self._ask(f"{path}._version", lambda: value._version)
            if own := vars(value):
                self._entries(own, [key for key in own if self.every or key in self.names], path)
            if own or not self.names.isdisjoint(_TRIED):
                self.watch(Watched(path, "names", own))
        elif isinstance(value, KINDS):
            self._container(value, path)
        elif isinstance(value, nn.Module):
            self._module(value, path)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, Ran):
            self._code(value.code, value.globals)
        elif isinstance(value, types.MethodType):
            self.key += [self.look(value.__func__, path), self.look(value.__self__, path.rpartition(".")[0] or "self")]
        elif isinstance(value, types.BuiltinMethodType):
            if not isinstance(value.__self__, types.ModuleType | type | None):
                self.key.append(self.look(value.__self__, path))
        elif isinstance(value, functools.partial):
            self.watch(Watched(path, "parts", functools.partial(_PARTS_OF_PARTIAL, value)))
            self._attributes(value, path)
        elif isinstance(value, staticmethod | classmethod):
            self.key.append(self.look(value.__func__, path))
        elif isinstance(value, property):
            self.key += [self.look(part, path) for part in (value.fget, value.fset)]
        elif isinstance(value, functools.cached_property):
            self.key.append(self.look(value.func, path))
        elif isinstance(value, operator.attrgetter | operator.methodcaller):
            texts = [each for each in value.__reduce__()[1] if isinstance(each, str)]
            self.names.update(part for text in texts for part in text.split("."))
        elif isinstance(value, types.MappingProxyType):
            self.watch(Watched(path, "dict", value))
        elif isinstance(value, weakref.ReferenceType):
            self.watch(Watched(path, "computed", lambda: value() is not None))
            self._weak.append((path, value))
        elif isinstance(value, contextvars.ContextVar):
            self.watch(Watched(path, "computed", functools.partial(value.get, MISSING)))
        elif isinstance(value, types.ModuleType):
            self._python_module(value, path)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, threading.local):  # each thread has its own
            names = tuple(sorted(key for key in self.names if not key.startswith("__")))
            self.watch(Watched(path, "attributes", value, names), [f"{path}.{key}" for key in names])
        elif type(value) in weakref.ProxyTypes:
            self._weak.append((path, weakref.ref(value.__repr__.__self__)))
        elif isinstance(value, torch.Generator) and not is_of_host(value):
            self.on_device.append(value)
        elif type(value).__module__.startswith(_OURS):  # what parameterize returned calls this, and its notes are ours
            self.key.append(self.look(getattr(value, "__wrapped__", None), path))
        elif type(value).__module__.partition(".")[0] in _SHARED:
            self._questions(value, path)
        elif not isinstance(value, _OPAQUE):
            self._object(value, path)


def walk(roots: Sequence[Any], ran: Set[types.CodeType] | None) -> Walk:
    """Walk until no further name comes up; into functions whose code ``ran``, or into all where that isn't known yet.

    Raises:
        RefusedError: there is too much, or something that a trace can't be kept from missing.
    """
    names: frozenset[str] = frozenset()
    every = False
    while True:
        found = Walk(roots, ran, names, every)
        if found.names == names and found.every == every:
            return found
        names, every = frozenset(found.names), found.every
