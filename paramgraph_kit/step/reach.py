"""What the Python code of a step can reach: from its function, its arguments and ``state=`` to every place of a value.

A place is a key of a holder: an attribute, an item, a variable of a closure, a global name, the gradient of a tensor.
"""

from __future__ import annotations

import abc
import array
import builtins
import contextvars
import functools
import io
import logging
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np
import torch

from paramgraph_kit.backend.asked import ANSWERS, LARGE, decimals, hooks_of_all, nbytes, questions, registered
from paramgraph_kit.backend.code_names import ENVIRONMENT, all_names, functions_of, names_of, run_by
from paramgraph_kit.backend.plain import PLAIN, is_bare, is_table, same
from paramgraph_kit.backend.raw import KINDS, items_of
from paramgraph_kit.driver.files import is_library, is_library_code
from paramgraph_kit.driver.host_random import is_of_host
from paramgraph_kit.driver.native.objects import dictionary_of
from paramgraph_kit.driver.tensors import parts_of
from paramgraph_kit.step.holders import EMPTY, Holder, of_library, slots_of
from paramgraph_kit.step.names import Names, globals_named

MOST = 100_000  # holders
LONG = 4096  # a longer list or dict is data, not state: what is in it is not looked at
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_RUN = (torch.nn.Module, torch.optim.Optimizer)
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
# What a module keeps for saving and loading, or beside hooks that are looked at themselves.
_ASIDE = frozenset(
    (
        *("_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks"),
        *("_load_state_dict_post_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
        *("_forward_pre_hooks_with_kwargs", "_is_full_backward_hook"),
    )
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_SETTINGS = (*PLAIN, list, set, types.ModuleType, type, *_FUNCTIONS)
_DECIMALS = frozenset(("decimal", "Decimal", "getcontext"))
_TRIED = ("getattr", "hasattr", "AttributeError", "vars", "__dict__")  # who looks for attributes that are not there
_SKIPPED = ("threading", "logging", "_thread", "queue", "concurrent", "multiprocessing", "weakref", "_io", "io")
_ASKED_ALONE = ("logging", "concurrent")  # which note what they were asked, and lead to all others
_OURS = "paramgraph_kit."


def _look_inside(tensor: torch.Tensor) -> Any:
    """The tensors inside a subclass, and what else there is to it."""
    names, rest = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return [*(getattr(tensor, name) for name in names), rest, tensor.requires_grad, tensor.shape]


class Reach:
    """One walk: all holders and tensors that the roots lead to, in a fixed order."""

    def __init__(
        self, roots: Iterable[tuple[str, Any]], given: Iterable[tuple[str, Any]], names: Names, narrow: bool = False
    ) -> None:
        self.holders: list[Holder] = []
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}  # by id, with the first name
        self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []
        self.schedulers: list[tuple[str, Any]] = []
        self.scripted = ""  # the name of a module that torch.jit has compiled, if there is one
        self.unhooked: list[dict[Any, Any]] = []  # where modules would keep hooks
        self.objects: list[Any] = []  # whose class and dictionary may be assigned
        self.iterators: list[tuple[str, Any]] = []  # of C, which do not show how far they are
        self.generators: list[tuple[str, Any]] = []  # that draw on the host
        self.unseen: list[tuple[str, str]] = []  # what nobody can look into at each call: its name, and what it is
        self._all, self._named = names, set(names.own)
        self._names = names if narrow else None  # who goes only where these lead
        self._modules: list[tuple[types.ModuleType, str, bool]] = []
        self._weakly = False
        self._seen: set[int] = set()
        self._once: set[Any] = set()
        self._alive: list[Any] = []  # ids stay their own while this lives
        for name, value in roots:
            self._visit(value, name)
        for name, hooks in hooks_of_all():
            self._visit(hooks, name)
        for space, known in names.spaces.values():
            self._globals(space, known)
        self._imported(names.modules)
        self._environment(names.known)
        self._of_modules()
        self.own = len(self.holders)  # those behind are the arguments' alone, which are others at each call
        self.own_objects, self.own_tensors = len(self.objects), set(self.tensors)
        for name, value in given:
            self._visit(value, name)
        self._of_modules()

    def let_go(self, old: Any, new: Any) -> None:
        """What led to a tensor, or to a tuple of some, leads to another one."""
        if (known := self.tensors.pop(id(old), None)) is not None:
            self.tensors[id(new)] = known[0], new
        self._alive = [new if x is old else x for x in self._alive]

    @property
    def complete(self) -> bool:
        """Whether all was looked at."""
        return len(self.holders) <= MOST

    @property
    def keys(self) -> set[tuple[str, int, str]]:
        """What tells its holders apart."""
        return {(holder.kind, id(holder.target), holder.key) for holder in self.holders}

    def forget(self, gone: Set[int]) -> None:
        """Hold what has these ids no more."""
        self._alive = [value for value in self._alive if id(value) not in gone]

    def _visit(self, value: Any, name: str) -> None:
        if is_bare(value) or id(value) in self._seen or not self.complete:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._visit(value.__wrapped__, name)
            self.holders.append(holder := Holder("cached", name, value, whole=True))
            for part in holder.read().values():
                self._visit(part, f"{name}(...)")
        elif isinstance(value, types.MethodType):
            self._visit(value.__func__, name)
            self._visit(value.__self__, name.rpartition(".")[0] or "self")
        elif isinstance(value, types.FunctionType):
            self._answers(value, name)
            self._function(value)
        elif isinstance(value, types.BuiltinFunctionType):
            self._answers(value, name)
            if not isinstance(value.__self__, (types.ModuleType, type)):
                self._visit(value.__self__, name)
        elif isinstance(value, (staticmethod, classmethod)):
            self._visit(value.__func__, name)
        elif isinstance(value, property):
            for part in (value.fget, value.fset):
                self._visit(part, name)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            texts = [each for each in value.__reduce__()[1] if isinstance(each, str)]
            self._all.spell({part for text in texts for part in text.split(".")})
        elif isinstance(value, KINDS):
            self._container(value, name)
        elif isinstance(value, types.ModuleType):
            self._module(value, name)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(getattr(type(value), "__next__", None), types.WrapperDescriptorType) and not isinstance(
            value, io.IOBase
        ):
            self.iterators.append((name, value))
        elif is_of_host(value):
            self.generators.append((name, value))
        elif isinstance(value, np.ndarray):
            self.arrays.append((name, value))
            if value.nbytes > LARGE:
                self.unseen.append((name, f"is an array of {value.nbytes:,} bytes"))
            elif value.dtype.hasobject:
                self._asked(value, name, lambda: tuple(value.flat))
        elif nbytes(value) > LARGE:
            self.unseen.append((name, f"is an array of {nbytes(value):,} bytes"))
        elif isinstance(value, (array.array, bytearray)):
            self.holders.append(Holder("bytes", name, value, whole=True))
        elif isinstance(value, weakref.ReferenceType):
            self._asked(value, name, lambda: value() is not None)
            self._weak(value(), name)
        elif type(value) in weakref.ProxyTypes:
            self._weak(value.__repr__.__self__, name)
        elif isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)):
            self._visit(vars(value)["data"], name)
        elif isinstance(value, threading.local):  # what this thread sees of it
            self._visit(vars(value), name)
            self._visit(type(value), type(value).__name__)
        elif isinstance(value, contextvars.ContextVar):
            self.holders.append(Holder("context", name, value, whole=True))
            self._visit(value.get(EMPTY), name)
        elif (type(value).__module__ or "").startswith(_OURS):  # what parameterize returned, in a larger step
            self._visit(getattr(value, "__wrapped__", None), name)
        else:
            asked = questions(value)
            for n, ask in enumerate(asked):
                self._asked(value, name, ask, str(n))
            module = type(value).__module__ or ""
            if not module.startswith(_SKIPPED) or (asked and not module.startswith(_ASKED_ALONE)):
                self._object(value, name)

    def _asked(self, value: Any, name: str, ask: Callable[[], Any], key: str = "") -> None:
        self.holders.append(Holder("asked", name, value, key, ask=ask))
        self._visit(ask(), name)

    def _answers(self, function: Any, name: str) -> None:
        if isinstance(function, _FUNCTIONS) and (ask := ANSWERS.get(function)) is not None:
            self._asked(function, f"{name}()", ask)

    def _weak(self, value: Any, name: str) -> None:
        """What somebody else keeps, or not: nobody here holds it. A tensor has to be reached otherwise to be known."""
        if isinstance(value, torch.Tensor):
            return
        before, self._weakly = self._weakly, True
        self._visit(value, name)
        self._weakly = before

    def _module(self, module: types.ModuleType, name: str) -> None:
        own = vars(module)
        file = own.get("__file__")
        if is_library(file) if isinstance(file, str) else own.get("__spec__") is not None:
            self._modules.append((module, name, True))
        else:  # or made by hand, where nothing has found it
            self.holders.append(Holder("attributes", name, own))
            self._modules.append((module, name, False))

    def _counts(self, holder: Holder, key: str) -> bool:
        return key in self._named or self._all.counts(holder, key)

    def _computed(self, module: types.ModuleType, name: str) -> None:
        """What modules of a class of their own compute, as torch's of settings do."""
        if (kind := type(module)) is types.ModuleType:
            return
        self._visit(kind, kind.__name__)
        known = {key for each in kind.__mro__ for key in vars(each)} - set(dir(types.ModuleType))
        for key in sorted(known & self._named):
            now = getattr(module, key, None)
            if isinstance(now, PLAIN) and (module, key) not in self._once:
                self._once.add((module, key))
                ask = functools.partial(getattr, module, key, None)
                self.holders.append(Holder("asked", f"{name}.{key}", module, key, ask=ask))

    def _of_modules(self) -> None:
        """What the user's code names of modules: of libraries settings, and functions that may be replaced."""
        done: tuple[int, int] | None = None
        while done != (done := (len(self._named), len(self._modules))):
            for module, name, library in self._modules:  # some come meanwhile
                own = vars(module)
                known = self._named if library else self._named | {"__getattr__"}
                if self._all.dynamic and not library:
                    known = {key for key in own if not key.startswith("__")}
                for key in sorted(known & own.keys()):
                    self._of_module(own, key, f"{name}.{key}", library)
                self._computed(module, name)

    def _of_module(self, own: dict[str, Any], key: str, name: str, library: bool) -> None:
        part = own[key]
        if not library:
            self._visit(part, name)
        elif not key.startswith("_") and isinstance(part, _SETTINGS):
            if not isinstance(part, types.ModuleType):
                self._global(own, key)
            self._answers(part, name)
            users = isinstance(part, types.FunctionType) and not is_library_code(part.__code__, part.__globals__)
            if users or isinstance(part, (list, set, types.ModuleType)):
                self._visit(part, name)
        elif not key.startswith("_") and (isinstance(part, (logging.Logger, types.MethodType)) or is_table(part)):
            self._global(own, key)
            self._visit(part, name)

    def _class(self, value: type) -> None:
        for kind in value.__mro__:
            if of_library(kind):
                self._layer(kind)
            if of_library(kind) or (kind is not value and id(kind) in self._seen):
                continue
            self._seen.add(id(kind))
            self._alive.append(kind)
            self.holders.append(holder := Holder("class", kind.__name__, kind))
            for key, part in list(vars(kind).items()):
                if self._names is None or isinstance(part, types.FunctionType) or self._counts(holder, key):
                    self._visit(part, f"{kind.__name__}.{key}")
            if isinstance(kind, abc.ABCMeta):
                self._asked(registered, "who counts as an instance of abstract classes", registered)
            self._visit(type(kind), f"type({kind.__name__})")

    def _layer(self, kind: type) -> None:
        """A class of a library's layers or optimizers: what it runs may be replaced, or what this calls."""
        if not issubclass(kind, _RUN) or kind in (*_RUN, *self._once):
            return
        self._once.add(kind)
        self.holders.append(Holder("class", kind.__name__, kind))
        if (run := run_by(kind)) is not None:
            self._visit(run, f"{kind.__name__}.{run.__name__}")
            own, names = functions_of(kind, run)
            for name in names:
                self._of_module(own, name, name, library=True)

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        self.tensors[id(tensor)] = (name, tensor)
        if tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)):
            self.holders.append(Holder("gradient", name, tensor))
            if tensor.grad is not None:
                self._visit(tensor.grad, f"{name}.grad")
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            if hooks:
                self._visit(hooks, f"{name}'s hooks")
        attributes = getattr(tensor, "__dict__", None)
        inside = parts_of(tensor)
        if inside is not None:
            look = functools.partial(_look_inside, tensor)
            self._asked(tensor, name, look if same(look(), look()) else functools.partial(parts_of, tensor))
        if attributes or (attributes is not None and not self._named.isdisjoint(_TRIED)):
            self.holders.append(Holder("attributes", name, attributes, whole=inside is not None))
            for key, part in list(attributes.items()):
                self._visit(part, f"{name}.{key}")

    def _environment(self, named: Set[str]) -> None:
        if named & ENVIRONMENT:
            self._visit(vars(os.environ)["_data"], "os.environ")

    def _function(self, function: types.FunctionType) -> None:
        library = is_library_code(function.__code__, function.__globals__)
        if not library:
            self._named |= all_names(function.__code__)
        for attribute in ("__wrapped__", "_torchdynamo_orig_callable"):
            if (inner := getattr(function, attribute, None)) is not None:
                self._visit(inner, function.__name__)
        if not library:
            self.holders.append(Holder("attributes", function.__name__, function.__dict__))
            for key, part in list(function.__dict__.items()):
                self._visit(part, f"{function.__name__}.{key}")
        for part in (function.__defaults__, function.__kwdefaults__):
            self._visit(part, function.__name__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            holder = Holder("cell", name, cell)
            value = holder.read()[""]
            if value is not EMPTY:
                self.holders.append(holder)
                self._visit(value, name)
        if not library:
            if not _DECIMALS.isdisjoint(function.__code__.co_names):
                self._asked(decimals, "the context of decimals", decimals)
            self.holders.append(Holder("function", function.__name__, function, whole=True))
            self._globals(function.__globals__, globals_named(function.__code__))
            self._imported(names_of(function.__code__).modules)
            self._environment(names_of(function.__code__).globals | names_of(function.__code__).attributes)

    def _imported(self, modules: Iterable[str]) -> None:
        for name in sorted(modules):
            if name in sys.modules:
                self._global(sys.modules, name)
                self._visit(sys.modules[name], name)

    def _globals(self, space: dict[str, Any], names: Iterable[str]) -> None:
        for name in sorted(names):
            if name in space:
                self._global(space, name)
                self._visit(space[name], name)
            elif name in (own := vars(builtins)):  # a global of the name may come
                self._global(space, name)
                if type(own[name]) not in (types.BuiltinFunctionType, type):
                    self._global(own, name)
                    self._visit(own[name], name)
            else:  # deleted, or not there yet: it may come
                self._global(space, name)

    def _global(self, space: dict[str, Any], name: str) -> None:
        if (id(space), name) not in self._once:
            self._once.add((id(space), name))
            self.holders.append(Holder("global", name, space, name))

    def _container(self, value: Any, name: str) -> None:
        if isinstance(value, (tuple, frozenset)):
            for n, part in items_of(value):
                self._visit(part, f"{name}[{n}]")
        else:
            self.holders.append(Holder.of(value, name))
            items = items_of(value)
            if len(items) > LONG:
                if not all(is_bare(part) for _, part in items):
                    self.unseen.append((name, f"has {len(items):,} items, each of which may change"))
                items = []
            for key, part in items:
                self._visit(part, f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[...]")
                self._visit(key, name)  # of a dict it may be an object
        for n, ask in enumerate(questions(value)):
            self._asked(value, name, ask, str(n))
        if not of_library(type(value)) or dictionary_of(value):
            self._object(value, name)

    def _object(self, value: Any, name: str) -> None:
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self.schedulers.append((name, value))
        if not self._weakly or not type(value).__weakrefoffset__:
            self.objects.append(value)
        else:
            reference = weakref.ref(value)
            self._asked(reference, name, lambda: type(reference()), "type")
        self._visit(type(value), type(value).__name__)
        slots = slots_of(type(value))
        if slots and self._weakly:
            self.unseen.append((name, "has slots, and nothing but a weak reference leads to it"))
        elif slots:
            self.holders.append(holder := Holder("slots", name, value))
            for key in slots:
                if self._names is not None and not self._names.counts(holder, key):
                    continue
                self._visit(getattr(value, key, None), f"{name}.{key}")
        if (attributes := dictionary_of(value)) is None:
            return
        self.holders.append(holder := Holder("attributes", name, attributes, owner=type(value)))
        holder.whole = isinstance(value, types.SimpleNamespace)  # C compares and prints all of one
        is_module = isinstance(value, torch.nn.Module)
        for key, part in list(attributes.items()):
            if (self._names is not None and not self._names.counts(holder, key)) or (is_module and key in _ASIDE):
                continue
            if is_module and key in _HOOKS and not part:
                self.unhooked.append(part)
            elif is_module and key in _MODULE_DICTS and not isinstance(part, dict):
                self.scripted = self.scripted or name or "the step"
            elif is_module and key in _MODULE_DICTS:
                self.holders.append(Holder("dict", name, part, whole=True))
                for child, what in part.items():
                    self._visit(what, f"{name}.{child}" if name else child)
            else:
                self._visit(part, f"{name}.{key}" if name else key)
