"""What a traced function may read beside its arguments, found by name from the code that runs.

From the function to its globals, closures and defaults, from there to the functions, classes, modules and objects that
it names, and on to what these name. That is more than is read, so a change may cost a trace; what cannot be told is
refused by name. A function that did not run while tracing is not looked into.
"""

from __future__ import annotations

import abc
import builtins
import contextvars
import datetime
import decimal
import fractions
import functools
import io
import operator
import os
import pathlib
import queue
import re
import sys
import threading
import types
import uuid
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from paramgraph_kit.backend.asked import (
    ANSWERS,
    LARGE,
    Answer,
    Contents,
    decimals,
    hooks_of_all,
    is_setting,
    nbytes,
    questions,
    registered,
)
from paramgraph_kit.backend.code_names import (
    DYNAMIC,
    ENVIRONMENT,
    all_names,
    called_by,
    inherits,
    inner_code,
    is_foreign,
    is_foreign_module,
    matches_classes,
    names_of,
    run_by,
)
from paramgraph_kit.backend.functions import ABSENT, Rows, Torchs
from paramgraph_kit.backend.plain import PLAIN, is_bare, plain_key
from paramgraph_kit.backend.raw import KINDS, items_of, length_of
from paramgraph_kit.backend.watched import MISSING, ClassEntries, Watched
from paramgraph_kit.driver.files import is_library_code
from paramgraph_kit.driver.host_random import is_of_host
from paramgraph_kit.driver.native.objects import dictionary_of
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

# Objects that never change, told by what they print.
_FIXED = (range, slice, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta,
          pathlib.PurePath, uuid.UUID, re.Pattern, np.generic, np.dtype)  # fmt: skip
# Of these modules: what other threads and processes write, or what goes out; a call must not put it back.
_SHARED = ("threading", "_thread", "queue", "concurrent", "multiprocessing", "asyncio", "logging")
_OPAQUE = (types.CodeType, types.FrameType, types.GenericAlias, types.UnionType, types.BuiltinFunctionType,
           types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType,
           types.MemberDescriptorType, types.ClassMethodDescriptorType, torch._ops.OperatorBase,
           torch._ops.OpOverloadPacket)  # fmt: skip
_STRUCTURE = frozenset(vars(nn.Module())) - {"training"}  # of every module, looked at by itself
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a function
_PLUMBING = ("__class__", "__init__", "__new__", "__repr__", "__str__", "__reduce__", "__reduce_ex__")
_TAKEN = ("put", "get", "put_nowait", "get_nowait")
_OURS = "paramgraph_kit."
MOST = 20_000  # values: more than these would take longer to look at in each call than a graph saves
_CALLED = (types.FunctionType, types.BuiltinFunctionType)
_PARTS_OF_PARTIAL = operator.attrgetter("func", "args", "keywords")
_TRIED = ("getattr", "hasattr", "AttributeError", "vars", "__dict__")  # who looks for attributes that are not there
_HELD = (torch.Tensor, nn.Module, types.FunctionType, types.MethodType, type, np.ndarray, threading.local, *KINDS)
_ALONE = "is a weak reference to what nothing else leads to, which a trace would keep alive"
_WRAPPERS = ("functools.py", "contextlib.py")  # whose functions keep the user's in closures


class Walk:
    """One walk from a function; ``key`` tells what was found, ``watched`` where."""

    def __init__(
        self, roots: Sequence[Any], ran: Set[types.CodeType] | None, known: frozenset[str], every: bool
    ) -> None:
        self.names, self.every, self._ran = set(known), every, ran
        self.watched: list[Watched] = []
        self.key: list[Any] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []  # of no module
        self.generators: list[tuple[str, Any]] = []  # that draw on the host
        self.on_device: list[torch.Generator] = []
        self.caches: list[tuple[str, Any]] = []  # functions that remember their results
        self.codes: set[types.CodeType] = set()
        self.looks_at_all = False
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # ids stay their own while these live
        self._queue: deque[tuple[Any, str]] = deque()
        self._weak: deque[tuple[str, Any]] = deque()  # references, which must keep nothing alive
        self._weakly: set[int] = set()  # what nothing else leads to
        self._decimals = self._abstract = False
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
                    self._refuse(path, _ALONE)
                    continue
                self._weakly.add(id(value))
            self.key.append(self.look(value, path))
            self._drain()

    def look(self, value: Any, path: str) -> Any:
        """What stands for a value in the key; what is in it will be visited."""
        if isinstance(value, PLAIN):
            if not is_bare(value) and id(value) not in self._numbers:
                self._number(value, path)
            return plain_key(value)
        if value is MISSING:
            return MISSING
        if isinstance(value, _FIXED):
            self._decimals |= isinstance(value, decimal.Decimal)
            return type(value), repr(value)
        number = self._numbers.get(id(value))
        if number is not None:
            return "again", number
        self._number(value, path)
        if isinstance(value, KINDS):
            return type(value), length_of(value)
        if isinstance(value, torch.Tensor):
            return "tensor"
        return id(value)

    def _number(self, value: Any, path: str) -> None:
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        self._queue.append((value, path))

    def _ask(self, path: str, ask: Callable[[], Any]) -> None:
        self.watch(Watched(path, "computed", Answer(ask)))

    def watch(self, watched: Watched, names: Iterable[str] | None = None) -> None:
        """Keep what a holder holds now, and look at it."""
        watched.values = watched.read()
        self.watched.append(watched)
        paths = names or [watched.name] * len(watched.values)
        # Which dictionary an object has is not in the key: what is in it is.
        values = watched.values[:1] if watched.kind == "class" else watched.values
        self.key += [watched.kind, len(values), *map(self.look, values, paths)]

    def _entries(self, holder: Any, keys: Iterable[str], path: str, *, versioned: bool = False) -> None:
        chosen = tuple(sorted(keys))
        paths = [f"{path}.{key}" if path else key for key in chosen]
        self.watch(Watched(path, "entries", holder, chosen, versioned=versioned), paths)

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

    def _container(self, value: Any, path: str) -> None:
        if isinstance(value, tuple | frozenset):
            self.key += [self.look(part, f"{path}[{n}]") for n, part in items_of(value)]
        elif isinstance(value, dict):
            keys = [f"{path}[{key!r}]" if isinstance(key, str | int) else f"{path}[...]" for key, _ in items_of(value)]
            # An ordered one can be put in another order, of which its version does not tell.
            versioned = type(value) is dict or (type(value) in (OrderedDict, defaultdict) and not value)
            self.watch(Watched(path, "dict", value, versioned=versioned), [path] * len(keys) + keys)
        else:
            self.watch(Watched(path, "items", value), [f"{path}[{n}]" for n in range(length_of(value))])
        if isinstance(value, defaultdict):
            self._ask(f"{path}.default_factory", lambda: value.default_factory)
        if type(value) not in KINDS and not is_foreign_module(type(value).__module__):
            self._attributes(value, path)

    def _function(self, function: types.FunctionType, path: str) -> None:
        code = function.__code__
        wrapped = function.__dict__.get("__wrapped__")
        if is_foreign(code.co_filename):
            if wrapped is None and not code.co_filename.endswith(_WRAPPERS):
                return
        elif self._ran is not None and code not in self._ran:
            return
        else:
            self._code(code, function.__globals__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.watch(Watched(name, "cell", cell))
        self.watch(Watched(path or function.__name__, "attributes", function, _PARTS))
        self.watch(Watched(path or function.__name__, "names", function.__dict__, versioned=True))
        if function.__dict__:
            chosen = [key for key in function.__dict__ if self.every or key in self.names or key == "__wrapped__"]
            self._entries(function.__dict__, chosen, path or function.__name__)

    def _code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        self.codes.update(inner_code(code))
        names = names_of(code)
        self.names |= names.attributes
        if not is_library_code(code, space):
            self.looks_at_all |= not {"vars", "__dict__"}.isdisjoint(names.attributes | names.globals)
        self.every = self.every or bool((names.attributes | names.globals) & DYNAMIC) or matches_classes(code)
        known = names.globals & space.keys()
        own = vars(builtins)
        hidden = (names.globals & own.keys()) - known  # a global of the name may come
        added = {name for name in hidden if type(own[name]) not in (types.BuiltinFunctionType, type)}
        if names.globals & {"globals", "eval", "exec"}:
            known |= {key for key, value in space.items() if isinstance(value, (*PLAIN, *KINDS))}
        absent = names.globals - own.keys()  # deleted, or not there yet: it may come
        self._entries(space, (known | hidden | absent) - {"__builtins__"}, "")
        if added:
            self._entries(own, added, "")
        self._decimals |= not {"decimal", "Decimal", "getcontext"}.isdisjoint(names.globals)
        if (names.attributes | names.globals) & ENVIRONMENT:
            self.key.append(self.look(os.environ, "os.environ"))
        if found := sorted(names.modules & sys.modules.keys()):
            self.watch(Watched("sys.modules", "entries", sys.modules, tuple(found)), found)

    def _module(self, module: nn.Module, path: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return
        self.modules.append((path, module))
        own, foreign = vars(module), inherits(type(module))
        chosen = {"forward"}
        for key, value in own.items():
            read = key in self.names  # of torch's modules, too: others hang their own there, as accelerate its hooks
            counts = read or (not key.startswith("_") if foreign else self.every)
            if key not in _STRUCTURE and (isinstance(value, PLAIN) or counts):
                chosen.add(key)
        self._entries(own, chosen, path or type(module).__name__, versioned=True)
        self.watch(Watched(path, "names", own, versioned=True))  # one may come that was looked for in vain
        for kind in _HOOKS:
            self.key.append(self.look(own[kind], f"{path}.{kind}"))
        for name, child in module._modules.items():  # before the dictionary that holds them: so they get their names
            self.key.append(self.look(child, f"{path}.{name}" if path else name))
        self.key.append(self.look(module._modules, path))
        self.watch(Watched(type(module).__name__, "class", module))  # assigning it writes no dictionary

    def _class(self, kind: type) -> None:
        if is_foreign_module(kind.__module__):
            if issubclass(kind, nn.Module):
                self._layer(kind)
            return
        chosen = {key for each in kind.__mro__ for key in vars(each) if key in self.names}
        # Methods that operators and torch call, by names that are not in the user's code.
        called = {key for each in kind.__mro__[1:] if is_foreign_module(each.__module__) for key in vars(each)}
        chosen |= {
            key
            for key, value in vars(kind).items()
            if callable(value) and ((key.startswith("__") and key not in _PLUMBING) or key in called)
        }
        if self.every:
            chosen |= {key for key in vars(kind) if not key.startswith("__")}
        self._entries(ClassEntries(kind), chosen, kind.__name__)
        self.watch(Watched(kind.__name__, "computed", functools.partial(len, vars(kind))))
        self.watch(Watched(kind.__name__, "attributes", kind, ("__bases__",)))
        for base in kind.__mro__[1:]:
            self.key.append(self.look(base, base.__name__))
        self.key.append(self.look(type(kind), f"type({kind.__name__})"))
        self._abstract |= isinstance(kind, abc.ABCMeta)

    def _layer(self, kind: type) -> None:
        """A class of layers of torch's: its ``forward`` may be replaced, or a function that this calls."""
        for each in kind.__mro__[: kind.__mro__.index(nn.Module)]:
            self._entries(ClassEntries(each), ("forward",), each.__name__)
            if (forward := run_by(each)) is not None and (names := called_by(forward.__code__)):
                self._entries(vars(F), names, "F")

    def _python_module(self, module: types.ModuleType, path: str) -> None:
        found = {key for key in self.names if key in vars(module)}
        if is_foreign_module(module.__name__):
            found = {k for k in found if is_setting(vars(module)[k]) and not k.startswith("_")}
        elif self.every:
            found |= {k for k, v in vars(module).items() if isinstance(v, PLAIN) and not k.startswith("__")}
        # torch's own are seldom written.
        self._entries(vars(module), found, path, versioned=module.__name__.partition(".")[0] == "torch")
        if (kind := type(module)) is not types.ModuleType:
            self.key.append(self.look(kind, f"type({path})"))
            computed = {key for each in kind.__mro__ for key in vars(each)} - set(dir(types.ModuleType))
            for key in sorted(self.names & computed):
                self.watch(Watched(f"{path}.{key}", "computed", _Attribute(module, key)))
        if isinstance(found_by := vars(module).get("__getattr__"), types.FunctionType):
            self.key.append(self.look(found_by, f"{path}.__getattr__"))

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        if isinstance(value, np.ndarray):
            if value.nbytes > LARGE or value.dtype.hasobject:
                self._refuse(path, f"is an array of {value.nbytes:,} bytes, too many to compare in each call")
                return
            self.watch(Watched(path, "contents", Contents(value)))
        elif nbytes(value) > LARGE:
            self._refuse(path, "is an array of many bytes, too many to compare in each call")
        elif is_of_host(value):
            self.generators.append((path, value))
        elif isinstance(value, queue.SimpleQueue) and not self.names.isdisjoint(_TAKEN):
            text = f"{path} is a {kind.__name__}, which tracing would fill or empty: give what it holds as an argument"
            raise RefusedError(Reason("unknown-state", text))
        elif self._questions(value, path):
            self._attributes(value, path)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._ask(path, lambda: value.cache_info().currsize)
            self.caches.append((path, value))
            self.key.append(self.look(value.__wrapped__, path))
        elif hasattr(kind, "__next__") and not isinstance(value, io.IOBase):
            # Known or not what runs: tracing would take from it what the call is to have.
            text = f"{path} is a {kind.__name__}, which would advance while tracing only"
            raise RefusedError(Reason("unknown-state", f"{text}: give what it holds as an argument"))
        else:
            self._attributes(value, path)

    def _questions(self, value: Any, path: str) -> bool:
        asked = questions(value)
        for ask in asked:
            self.watch(Watched(path, "contents", Answer(ask, value)))
        return bool(asked)

    def _refuse(self, path: str, what: str) -> None:
        if self._ran is not None:
            raise RefusedError(Reason("unknown-state", f"{path} {what}: give what it holds as an argument"))

    def _attributes(self, value: Any, path: str) -> None:
        kind = type(value)
        if (attributes := dictionary_of(value)) is not None:
            foreign = inherits(kind)
            chosen = [
                key
                for key, part in attributes.items()
                if self.every
                or key in self.names
                or key == "_value_"  # of a member of an enumeration
                or (foreign and isinstance(part, (*PLAIN, *KINDS)))
            ]
            self._entries(attributes, chosen, path)
            self.watch(Watched(path, "computed", functools.partial(len, attributes)))
        slots: list[str] = []
        for each in kind.__mro__:
            theirs = "__slots__" in vars(each) and inherits(kind)
            for key, part in vars(each).items():
                read = key in self.names or self.every or (theirs and isinstance(getattr(value, key, None), PLAIN))
                if key.startswith("__") or not read:
                    continue
                if isinstance(part, types.MemberDescriptorType):
                    slots.append(key)
                elif isinstance(part, types.GetSetDescriptorType):
                    self.watch(Watched(f"{path}.{key}", "computed", _Attribute(value, key)))
        if id(value) in self._weakly:
            reference = weakref.ref(value)
            self.watch(Watched(path, "computed", lambda: type(reference())))
        else:
            self.watch(Watched(path, "class", value))
        if slots and id(value) in self._weakly:
            self._refuse(path, _ALONE)
        elif slots:
            self.watch(Watched(path, "attributes", value, tuple(slots)), [f"{path}.{key}" for key in slots])


class _Attribute:
    """A plain attribute that C code computes; the same object while it is equal."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._last = owner, name, MISSING

    def __call__(self) -> Any:
        now = getattr(self._owner, self._name, MISSING)
        if not isinstance(now, PLAIN):
            return MISSING
        if self._last is MISSING or plain_key(now) != plain_key(self._last):
            self._last = now
        return self._last


@dataclass(frozen=True, slots=True)
class Ran:
    """Code that ran, where no function that has it can be found."""

    code: types.CodeType
    globals: dict[str, Any]


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
