"""What the Python code of a step can reach: from its function, its arguments and ``state=`` to every place of a value.

A place is a key of a holder: an attribute, an item, a variable of a closure, a global name, the gradient of a tensor.
"""

from __future__ import annotations

import array
import contextvars
import functools
import gc
import inspect
import io
import os
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from paramgraph_kit.backend.code_names import ENVIRONMENT, all_names, names_of
from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.driver.files import is_generated, is_library
from paramgraph_kit.driver.host_random import is_of_host
from paramgraph_kit.step.raw import items_of, put_item, refill, refill_set

MOST = 100_000  # holders
LONG = 4096  # a longer list or dict is data, not state: what is in it is not looked at
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
# What a module keeps for saving and loading, or beside hooks that are looked at themselves.
_ASIDE = frozenset(
    (
        *("_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks"),
        *("_load_state_dict_post_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
        *("_forward_pre_hooks_with_kwargs", "_is_full_backward_hook"),
    )
)
_SKIPPED = ("threading", "logging", "_thread", "queue", "concurrent", "multiprocessing", "weakref", "_io", "io")
_OURS = "paramgraph_kit."
PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a function: reloading a module writes them
EMPTY = object()  # in a closure's variable that holds nothing yet


@dataclass(slots=True)
class Holder:
    """Something that holds values and can be written."""

    # "attributes", "dict", "sequence", "set", "cell", "global", "class", "slots", "function", "bytes", "context",
    # "cached", "data" or "gradient"
    kind: str
    name: str  # how the step's code gets there: "model.layers[0]"
    target: Any
    key: str = ""  # of a global name
    whole: bool = False  # all of it counts, whatever the code names

    @classmethod
    def of(cls, container: Any, name: str) -> Holder:
        """Of a list, dict, deque or set."""
        kind = "dict" if isinstance(container, dict) else "set" if isinstance(container, set) else "sequence"
        return cls(kind, name, container, whole=True)

    def read(self) -> dict[Any, Any]:
        """What it holds now, by key."""
        match self.kind:
            case "attributes" | "dict" | "sequence":
                return dict(items_of(self.target))
            case "set":
                return {"": frozenset(value for _, value in items_of(self.target))}
            case "cell":
                try:
                    return {"": self.target.cell_contents}
                except ValueError:
                    return {"": EMPTY}
            case "context":
                return {"": self.target.get(EMPTY)}
            case "cached":
                return cached_by(self.target)
            case "data":  # a tensor that needs gradients by now, or none any more, holds something else
                return {bool(self.target.requires_grad): self.target.detach()}
            case "bytes":
                return {"": bytes(memoryview(self.target)) if len(memoryview(self.target)) <= LONG else EMPTY}
            case "function":
                return {name: getattr(self.target, name) for name in PARTS}
            case "global":
                return {self.key: self.target.get(self.key, EMPTY)}
            case "class":
                return {k: v for k, v in vars(self.target).items() if not k.startswith("__")}
            case "slots":
                return {k: getattr(self.target, k, EMPTY) for k in _slots_of(type(self.target))}
            case _:
                return {"": self.target.grad}

    def write(self, contents: Mapping[Any, Any]) -> None:
        """Hold these again, all of them and nothing else."""
        match self.kind:
            case "attributes" | "dict" | "sequence":
                refill(self.target, contents)
            case "set":
                refill_set(self.target, contents[""])
            case "global":
                self.put(self.key, contents[self.key])
            case "class":
                for name in self.read().keys() - contents.keys():
                    delattr(self.target, name)
                for name, value in contents.items():
                    if vars(self.target).get(name) is not value:
                        setattr(self.target, name, value)
            case "cached":  # by what a call computes, and what another one may find
                pass
            case _:
                for key, value in contents.items():
                    self.put(key, value)

    def put(self, key: Any, value: Any) -> None:
        """Let one of its places hold a value."""
        match self.kind:
            case "attributes" | "dict" | "sequence":
                put_item(self.target, key, value)
            case "global":
                if value is EMPTY:
                    self.target.pop(key, None)
                else:
                    self.target[key] = value
            case "cell":
                if value is EMPTY:
                    del self.target.cell_contents
                else:
                    self.target.cell_contents = value
            case "gradient":
                self.target.grad = value
            case "data":
                self.target.data = value
            case "context":
                if value is not EMPTY:
                    self.target.set(value)
            case "bytes":
                if value is not EMPTY:
                    memoryview(self.target).cast("B")[:] = value
            case _:
                if value is not EMPTY:
                    setattr(self.target, key, value)

    def place(self, key: Any) -> str:
        """A place of it, as the code names it."""
        match self.kind:
            case "attributes" | "slots" | "class":
                return f"{self.name}.{key}" if self.name else str(key)
            case "dict" | "sequence":
                return f"{self.name}[{key!r}]" if isinstance(key, (str, int)) else f"{self.name}[...]"
            case "gradient":
                return f"{self.name}.grad"
            case "data":
                return f"{self.name}.data"
            case "global":
                return self.key
            case _:
                return self.name


@dataclass(slots=True)
class Names:
    """What code that has run names: where the rest of an object may change without a captured step noticing."""

    known: set[str] = field(default_factory=set)
    spaces: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)  # of the user's globals
    modules: set[str] = field(default_factory=set)  # that the user's code imports as it runs
    dynamic: bool = False  # the user's code looks names up that are not in it
    compiled: bool = False  # code ran that Dynamo has compiled: it has read modules out of sight
    constants: dict[int, torch.Tensor] = field(default_factory=dict)  # of such code, which never changes
    _seen: set[types.CodeType] = field(default_factory=set)
    _modules: set[types.CodeType] = field(default_factory=set)

    def add(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Code that runs, with its global names."""
        if code in self._seen:
            return
        self._seen.add(code)
        library = is_library(code.co_filename)
        names = all_names(code)
        self.known |= names
        if is_generated(code.co_filename):
            found = [x for x in map(space.get, code.co_names) if isinstance(x, torch.Tensor)]
            self.constants |= {id(x): x for x in found}
        if library:
            self.compiled = self.compiled or code.co_filename.endswith("_dynamo/eval_frame.py")
        else:
            self.dynamic = self.dynamic or bool(names & _DYNAMIC)
            self.modules |= names_of(code).modules
            self.spaces.setdefault(id(space), (space, set()))[1].update(_globals_named(code))

    def add_module(self, code: types.CodeType, module: Any) -> None:
        """A module of operations that runs, whose code torch has made: its attributes are constants."""
        if code not in self._modules:
            self._modules.add(code)
            held = [*vars(module).values(), *module._buffers.values()]
            self.constants |= {id(x): x for x in held if isinstance(x, torch.Tensor)}

    def copy(self) -> Names:
        """What it knows by now."""
        spaces = {key: (space, set(names)) for key, (space, names) in self.spaces.items()}
        return Names(set(self.known), spaces, set(self.modules), self.dynamic, self.compiled, self.constants.copy())

    def counts(self, holder: Holder, key: Any) -> bool:
        """Whether the step may have read a place."""
        if holder.whole or holder.kind not in ("attributes", "slots", "class") or self.dynamic:
            return True
        return key in self.known or (self.compiled and isinstance(holder.target, dict) and "_modules" in holder.target)


_DYNAMIC = {
    "getattr",
    "setattr",
    "vars",
    "__dict__",
    "eval",
    "exec",
    "globals",
    "locals",
    "asdict",
    "astuple",
    "fields",
}


def _globals_named(code: types.CodeType) -> Set[str]:
    """An attribute may be called like a global variable, a loop's for instance, that changes at each call."""
    names = all_names(code)
    return names if names & _DYNAMIC else names_of(code).globals


class Reach:
    """One walk: all holders and tensors that the roots lead to, in a fixed order."""

    def __init__(
        self, roots: Iterable[tuple[str, Any]], given: Iterable[tuple[str, Any]], names: Names, narrow: bool = False
    ) -> None:
        self.holders: list[Holder] = []
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}  # by id, with the first name
        self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []
        self.iterators: list[tuple[str, Any]] = []  # of C, which do not show how far they are
        self.generators: list[tuple[str, Any]] = []  # that draw on the host
        self.schedulers: list[tuple[str, Any]] = []
        self.scripted = ""  # the name of a module that torch.jit has compiled, if there is one
        self.unhooked: list[dict[Any, Any]] = []  # where modules would keep hooks
        self._names = names if narrow else None  # who goes only where these lead
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # ids stay their own while this lives
        for name, value in roots:
            self._visit(value, name)
        for space, known in names.spaces.values():
            self._globals(space, known)
        self._imported(names.modules)
        self._environment(names.known)
        self.own = len(self.holders)  # those behind are the arguments' alone, which are others at each call
        for name, value in given:
            self._visit(value, name)

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
        if isinstance(value, PLAIN) or id(value) in self._seen or not self.complete:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, value.keywords):
                self._visit(part, name)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._visit(value.__wrapped__, name)
            self.holders.append(holder := Holder("cached", name, value, whole=True))
            for part in holder.read().values():
                self._visit(part, f"{name}(...)")
        elif isinstance(value, types.MethodType):
            self._visit(value.__func__, name)
            self._visit(value.__self__, name.rpartition(".")[0] or "self")
        elif isinstance(value, types.BuiltinMethodType):
            if not isinstance(value.__self__, (types.ModuleType, type)):
                self._visit(value.__self__, name)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, (dict, list, deque, set, tuple, frozenset)):
            self._container(value, name)
        elif isinstance(value, types.ModuleType):
            file = getattr(value, "__file__", None)
            if not is_library(file) if file else getattr(value, "__spec__", None) is None:  # made by hand, not found
                self.holders.append(Holder("attributes", name, vars(value)))
        elif isinstance(value, type):
            for kind in value.__mro__:
                if not _of_library(kind) and (kind is value or id(kind) not in self._seen):
                    self._seen.add(id(kind))
                    self._alive.append(kind)
                    self.holders.append(holder := Holder("class", kind.__name__, kind))
                    for key, part in holder.read().items():
                        if self._names is None or self._names.counts(holder, key):
                            self._visit(_behind(part), f"{kind.__name__}.{key}")
        elif isinstance(value, np.ndarray):
            self.arrays.append((name, value))
        elif isinstance(getattr(type(value), "__next__", None), types.WrapperDescriptorType):
            if not isinstance(value, io.IOBase):
                self.iterators.append((name, value))
        elif is_of_host(value):
            self.generators.append((name, value))
        elif isinstance(value, (array.array, bytearray)):
            self.holders.append(Holder("bytes", name, value, whole=True))
        elif isinstance(value, weakref.ReferenceType):
            self._visit(value(), name)
        elif isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)):
            self._visit(vars(value)["data"], name)
        elif isinstance(value, threading.local):  # what this thread sees of it
            self._visit(vars(value), name)
        elif isinstance(value, contextvars.ContextVar):
            self.holders.append(Holder("context", name, value, whole=True))
            self._visit(value.get(EMPTY), name)
        elif (type(value).__module__ or "").startswith(_OURS):  # what parameterize returned, in a larger step
            self._visit(getattr(value, "__wrapped__", None), name)
        elif not (type(value).__module__ or "").startswith(_SKIPPED):
            self._object(value, name)

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        self.tensors[id(tensor)] = (name, tensor)
        if tensor.is_leaf and tensor.requires_grad:
            self.holders.append(Holder("gradient", name, tensor))
            if tensor.grad is not None:
                self._visit(tensor.grad, f"{name}.grad")
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            if hooks:
                self._visit(hooks, f"{name}'s hooks")
        if attributes := getattr(tensor, "__dict__", None):
            self.holders.append(Holder("attributes", name, attributes))
            for key, part in list(attributes.items()):
                self._visit(part, f"{name}.{key}")

    def _environment(self, named: Set[str]) -> None:
        if named & ENVIRONMENT:
            self._visit(vars(os.environ)["_data"], "os.environ")

    def _function(self, function: types.FunctionType) -> None:
        library = is_library(function.__code__.co_filename)
        for attribute in ("__wrapped__", "_torchdynamo_orig_callable"):
            if (inner := getattr(function, attribute, None)) is not None:
                self._visit(inner, function.__name__)
        if function.__dict__ and not library:
            self.holders.append(Holder("attributes", function.__name__, function.__dict__))
            for key, part in list(function.__dict__.items()):
                self._visit(part, f"{function.__name__}.{key}")
        for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(part, function.__name__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            holder = Holder("cell", name, cell)
            value = holder.read()[""]
            if value is not EMPTY:
                self.holders.append(holder)
                self._visit(value, name)
        if not library:
            self.holders.append(Holder("function", function.__name__, function, whole=True))
            self._globals(function.__globals__, _globals_named(function.__code__))
            self._imported(names_of(function.__code__).modules)
            self._environment(names_of(function.__code__).globals | names_of(function.__code__).attributes)

    def _imported(self, modules: Iterable[str]) -> None:
        for name in sorted(modules):
            if name in sys.modules:
                self._visit(sys.modules[name], name)

    def _globals(self, space: dict[str, Any], names: Iterable[str]) -> None:
        for name in sorted(names):
            if name in space and (id(space), name) not in self._seen:  # type: ignore[comparison-overlap]
                self._seen.add((id(space), name))  # type: ignore[arg-type]
                self.holders.append(Holder("global", name, space, name))
                self._visit(space[name], name)

    def _container(self, value: Any, name: str) -> None:
        if isinstance(value, (tuple, frozenset)):
            for n, part in enumerate(value):
                self._visit(part, f"{name}[{n}]")
            return
        self.holders.append(Holder.of(value, name))
        if len(value) > LONG:
            return
        for key, part in items_of(value):
            self._visit(part, f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[...]")
            if isinstance(value, dict) and isinstance(key, torch.Tensor):
                self._visit(key, name)

    def _object(self, value: Any, name: str) -> None:
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self.schedulers.append((name, value))
        if not _of_library(type(value)):
            for kind in type(value).__mro__[:-1]:
                self._visit(kind, kind.__name__)
        if slots := _slots_of(type(value)):
            self.holders.append(holder := Holder("slots", name, value))
            for key in slots:
                if self._names is not None and not self._names.counts(holder, key):
                    continue
                self._visit(getattr(value, key, None), f"{name}.{key}")
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        self.holders.append(holder := Holder("attributes", name, attributes))
        is_module = isinstance(value, torch.nn.Module)
        for key, part in list(attributes.items()):
            if (self._names is not None and not self._names.counts(holder, key)) or (is_module and key in _ASIDE):
                continue
            if is_module and key in _HOOKS and not part:
                self.unhooked.append(part)
            elif is_module and key in _MODULE_DICTS and not isinstance(part, dict):
                self.scripted = self.scripted or name
            elif is_module and key in _MODULE_DICTS:
                self.holders.append(Holder("dict", name, part, whole=True))
                for child, what in part.items():
                    self._visit(what, f"{name}.{child}" if name else child)
            else:
                self._visit(part, f"{name}.{key}" if name else key)
        if not _of_library(type(value)):
            for method in (m for kind in type(value).__mro__[:-1] for m in vars(kind).values()):
                if isinstance(method, types.FunctionType):
                    self._visit(method, name)


def cached_by(function: Any) -> dict[Any, Any]:
    """What ``functools.cache`` and ``functools.lru_cache`` keep.

    >>> double = functools.cache(lambda x: [2 * x])
    >>> double(3) is cached_by(double)[3]
    True
    """
    own, parts = getattr(function, "__dict__", None), gc.get_referents(function)
    known: dict[Any, Any] = next((x for x in parts if type(x) is dict and x is not own), {})
    if not any(type(x).__name__ == "_lru_list_elem" for x in known.values()):
        return dict(known)
    return {id(x): x for x in parts if x is not own and x is not known}  # one that forgets tells no keys


def _behind(value: Any) -> Any:
    """The function of a method or a property, as a class holds it."""
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


_slots: dict[type, tuple[str, ...]] = {}
_libraries: dict[type, bool] = {}


def _slots_of(kind: type) -> tuple[str, ...]:
    if kind not in _slots:
        found = [vars(each).get("__slots__", ()) for each in kind.__mro__ if not _of_library(kind)]
        names = [name for slots in found for name in ((slots,) if isinstance(slots, str) else slots)]
        _slots[kind] = tuple(name for name in names if not name.startswith("__"))
    return _slots[kind]


def _of_library(kind: type) -> bool:
    if kind not in _libraries:
        _libraries[kind] = _is_of_library(kind)
    return _libraries[kind]


def _is_of_library(kind: type) -> bool:
    if kind.__module__ == "builtins":
        return True
    if file := getattr(sys.modules.get(kind.__module__), "__file__", None):
        return is_library(file)
    for value in vars(kind).values():
        if isinstance(value, types.FunctionType) and not value.__code__.co_filename.startswith("<"):
            return is_library(value.__code__.co_filename)
    try:
        return is_library(inspect.getfile(kind))
    except (TypeError, OSError):
        return kind.__module__ != "__main__"
