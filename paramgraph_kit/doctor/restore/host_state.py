"""What a function can change in Python: variables, lists, dictionaries and objects that it can reach."""

from __future__ import annotations

import argparse
import contextvars
import copy
import functools
import inspect
import os
import queue
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from paramgraph_kit.doctor.number_kinds import AMOUNTS, NUMBERS
from paramgraph_kit.doctor.restore.classes import (
    defaults_of,
    functions_of,
    global_names,
    is_of_library,
    named,
    of_library,
    wraps_users,
)
from paramgraph_kit.doctor.restore.empties import Sorted
from paramgraph_kit.doctor.restore.holder import PLAIN, Change, Holder, further, same, slots_of
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.doctor.restore.on_optimizers import set_on_optimizers
from paramgraph_kit.doctor.restore.out_of_sight import kind_of, leads_to, set_on_libraries, stored_names
from paramgraph_kit.driver.files import is_library_code

MOST = 20_000  # containers
MOST_ENTRIES = 2000  # of one that is looked into
DEEP = 6
_SIMPLE = (*NUMBERS, complex, str, bytes, types.ModuleType)  # what leads to nothing
_SIMPLE_KINDS = frozenset((*_SIMPLE, type(None)))
_NO_NUMBERS = ("generator", "iterator", "file", "array", "environment")  # which move nothing on
_BY_NAME = ("attributes", "slots", "class", "memory")
_TORCHS = ("torch.optim", "torch.amp", "torch.nn")
_WRAPPED = (UserDict, UserList, ChainMap, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_OF_MODULES = ("_parameters", "_buffers", "_modules")  # the names under which a module has its own
_NAMES = (types.SimpleNamespace, argparse.Namespace, threading.local)  # of which all attributes are the user's
_GROWS = ("holders", "functions", "tensors", "names", "generators", "lazy", "kept")
Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]


class HostState:
    """All holders that a function, its arguments and its owner lead to, and what they hold."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.holders: list[Holder] = []
        self.functions: list[types.FunctionType] = []  # of the user's own
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []  # of the tensors
        self.generators: list[torch.Generator] = []  # of the device, whose states torch keeps
        self.lazy: list[object] = []  # modules whose parameters come with the first call, and stay
        self._stays: dict[int, dict[Any, Any]] = {}  # by holder's target, what torch's own has made first for a graph
        self._seen: set[int] = set()
        self._stores: set[str] = set()  # attributes that the user's own functions set
        self._sorted: Sorted | None = None
        self._kinds: dict[int, tuple[type, bool, bool]] = {}  # by id, and the type, whose id stays its own so
        self._visit(function, "", 0)
        for name, value in named(function, args, kwargs):
            self._visit(value, name, 0)
        self.kept = [holder.read() for holder in self.holders]
        self.first_counts = self.library_counts()

    def held_by(self, target: Any) -> Any:
        """What a container held at first, or None where it was not found."""
        pairs = zip(self.holders, self.kept, strict=True)
        return next((value for holder, value in pairs if holder.target is target), None)

    def grown(self) -> HostState:
        """What the user's own lead to by now and did not at first, as the state that an optimizer makes in a step."""
        more = copy.copy(self)
        more.holders, more.functions, more.tensors = [], [], []
        more.names, more.generators, more.lazy, more._seen = [], [], [], set(self._seen)
        for holder, then in self._pairs(self.kept):
            if holder.of_torch or holder.kind in _NO_NUMBERS or holder.is_same(then):
                continue
            now = holder.read()
            if holder.kind in _BY_NAME:
                pairs = list(now.items())
            else:
                parts = now.values() if isinstance(now, dict) else now if _holds(now) else [now]
                pairs = [(holder.name, part) for part in parts]
            for name, part in pairs:
                more._visit(part, name, 1)
        more.kept = [holder.read() for holder in more.holders]
        return more

    def apart(self) -> HostState:
        """The same for someone who looks into what is made later, and keeps nothing of that alive behind it."""
        other = copy.copy(self)
        for name in _GROWS:
            setattr(other, name, [*getattr(self, name)])
        other._stays, other._seen, other._sorted = {}, {*self._seen}, None
        return other

    def from_now(self) -> HostState:
        """The same that goes back to what everything holds now."""
        other = copy.copy(self)
        other.kept, other._sorted = [holder.read() for holder in self.holders], None
        return other

    def grow(self) -> None:
        """Look into that, too."""
        more = self.grown()
        for name in _GROWS:
            getattr(self, name).extend(getattr(more, name))
        self._seen |= more._seen

    def read(self) -> list[Any]:
        """What all of the user's own hold now."""
        known = self._sort()
        if any(known.empty):
            return [None if holder.of_torch else holder.read() for holder in self.holders]
        found = [*known.blank]
        for n in known.rest:
            if not (holder := self.holders[n]).of_torch:
                found[n] = holder.read()
        return found

    def put_back(self, *, torchs_only: bool = False) -> None:
        """Make all hold what they held at first."""
        if not torchs_only:
            self._stays.clear()
        for holder, value in reversed([*self._pairs(self.kept)]):  # what was known first is last
            held = {**value, **stays} if (stays := self._stays.get(id(holder.target))) else value
            if ((holder.of_torch and not holder.goes_on) or not torchs_only) and not holder.is_same(held):
                holder.write(held)

    def leave(self, memory: Collection[int]) -> None:
        """Let torch's own keep what it has made first where a graph has some of that memory, until all is put back."""
        for holder, then in zip(self.holders, self.kept, strict=True):
            if not holder.of_torch or holder.goes_on or not isinstance(then, dict):
                continue
            made = {key: each for key, each in holder.target.items() if each is not None and then.get(key) is None}
            if any(storage_key(tensor) in memory for each in made.values() for tensor in _tensors_of(each)):
                self._stays[id(holder.target)] = made  # all of it: one part may be made only together with another

    def leave_begun(self) -> bool:
        """Let optimizers of torch's keep the states that a call has made first, until all is put back."""
        found = False
        for holder in [each for each in self.holders if is_optimizers(each)]:
            state, had = holder.target["state"], self.held_by(holder.target["state"]) or {}
            made = {key: each for key, each in state.items() if key not in had and isinstance(each, dict) and each}
            for each in made.values():
                self._container(each, "state", DEEP, of_torch=True)
            self._stays[id(state)] = {**self._stays.get(id(state), {}), **made}
            found |= bool(made)
        self.kept += [holder.read() for holder in self.holders[len(self.kept) :]]
        return found

    def set_to(self, held: list[Any]) -> None:
        """Make the user's own hold what they did as ``read`` gave this; generators draw on."""
        for holder, value in zip(self.holders, held, strict=False):  # it may have grown since
            if not holder.of_torch and holder.kind not in ("generator", "file") and not holder.is_same(value):
                holder.write(value)

    def changes(self, before: list[Any]) -> list[Change]:
        """What the user's own hold now and did not hold then."""
        found: list[Change] = []
        own = [each for each in self._pairs(before) if not (each[0].of_torch or each[0].kind == "generator")]
        moved = [(holder, then) for holder, then in own if not holder.is_same(then)]
        pairs = [*zip(self.holders, before, strict=True)] if moved else []
        had = {id(holder.target): then for holder, then in pairs if holder.kind == "container"}
        left = set[int]()  # containers in whose place another one is that holds what they did
        for holder, then in moved:
            now = holder.read()
            if holder.kind in _BY_NAME:
                names = [key for key in {**then, **now} if not same(then.get(key), now.get(key))]
                again = {n for n in names if _holds_the_same(then.get(n), now.get(n), had)}
                left |= {id(then[n]) for n in again}
                found += [
                    Change("attribute", str(n), then.get(n), now.get(n), holder.name) for n in names if n not in again
                ]
            elif holder.kind in ("global", "cell") and _holds_the_same(then, now, had):
                left.add(id(then))
            else:
                found.append(Change(holder.told_as, holder.name, then, now, entry=holder.entry))
        gone = [(holder.name, holder.read()) for holder, _ in pairs if left and id(holder.target) in left]
        return [c for c in found if c.kind != "container" or not any(c.name == n and same(c.after, v) for n, v in gone)]

    def advance(self, before: list[Any], times: int) -> bool:
        """Let numbers that moved since ``before`` move on, as if by so many calls; returns whether there are any."""
        found = False
        for holder, then in self._pairs(before):
            if holder.of_torch or (holder.kind in _NO_NUMBERS and holder.kind != "array") or holder.is_same(then):
                continue
            now = holder.read()
            if holder.kind == "array":
                moved = further(then, now, times)
                changed = moved is not now
            elif isinstance(now, dict):
                moved = {key: _further(then.get(key), value, times) for key, value in now.items()}
                changed, moved = any(moved[key] is not now[key] for key in now), {**moved}
            else:
                moved = _further(then, now, times)
                changed = moved is not now
            if changed:
                found = True
                holder.write(moved)
        return found

    def exchanged_on_modules(self) -> list[Change]:
        """What modules, and the states of torch's optimizers, have others of now; ``put_back`` undoes that."""
        kinds, every = (torch.Tensor, torch.nn.Module), self._rest()
        held = [(each.target, then) for each, then in every if each.kind == "attributes" and each.of is not None]
        now = {id(then[name]): own[name] for own, then in held for name in _OF_MODULES if name in then and name in own}
        for state in (each.target["state"] for each, _ in every if is_optimizers(each)):
            had = {**(self.held_by(state) or {}), **self._stays.get(id(state), {})}
            now |= {id(then): state[key] for key, then in had.items() if isinstance(state.get(key), dict)}
        return [
            Change("attribute", name, then[name], value, "" if holder.name in _OF_MODULES else "state")
            for holder, then in every
            if holder.kind == "container" and holder.of_torch and isinstance(then, dict)
            for name, value in now.get(id(holder.target), holder.target).items()
            if then.get(name) is not value and isinstance(value, kinds) and isinstance(then.get(name), kinds)
        ]

    def set_on_modules(self) -> list[tuple[dict[str, Any], str, Any]]:
        """What a call has set on torch's own: modules' modes, numbers and tensors, numbers on optimizers."""
        found: list[tuple[dict[str, Any], str, Any]] = []
        for holder, then in self._rest():
            if holder.of_torch and holder.kind == "attributes" and type(then.get("training")) is bool:
                held = [(name, value) for name, value in holder.target.items() if not name.startswith("_")]
                found += [(holder.target, n, v) for n, v in held if _is_set(v) and not same(v, then.get(n))]
        return [*found, *set_on_optimizers(self.holders, self._stores)]

    def library_counts(self) -> list[int]:
        """The whole numbers that modules of libraries hold now."""
        held = (holder.target for holder in self.holders if holder.goes_on)
        return [value for each in held for value in each.values() if type(value) is int]

    def memory(self) -> list[int]:
        """Which memory each tensor in reach has."""
        return [storage_key(tensor) for tensor in self.tensors]

    def moved(self, before: list[int]) -> dict[int, str]:
        """The memory that tensors had ``before`` and have no more, and what they are called."""
        pairs = zip(before, self.memory(), self.names, strict=True)
        return {then: name for then, now, name in pairs if then != now}

    def numbers(self) -> list[tuple[Holder, int | float]]:
        """Variables that hold a number and are not written in capitals, as constants are."""
        return [
            (holder, value)
            for holder, value in self._rest()
            if holder.kind in ("cell", "global") and type(value) in (int, float) and not holder.name.isupper()
        ]

    def _sort(self) -> Sorted:
        if self._sorted is None or self._sorted.of is not self.kept or len(self._sorted.blank) != len(self.kept):
            self._sorted = Sorted(self.holders, self.kept)
        return self._sorted

    def _rest(self) -> list[tuple[Holder, Any]]:
        """All but the empty ones, with what they held at first."""
        return [(self.holders[n], self.kept[n]) for n in self._sort().rest]

    def _pairs(self, before: list[Any]) -> list[tuple[Holder, Any]]:
        """All with what they held before, but for those that were empty at first, before and are now."""
        known = self._sort()
        if any(known.empty) or any(map(before.__getitem__, known.at)):
            return [*zip(self.holders, before, strict=True)]
        return [(self.holders[n], before[n]) for n in known.rest]

    def _visit(self, value: Any, name: str, depth: int) -> None:
        kind = type(value)
        if kind in _SIMPLE_KINDS or depth > DEEP or id(value) in self._seen or len(self.holders) > MOST:
            return
        if issubclass(kind, _SIMPLE):
            return
        self._seen.add(id(value))
        if kind in PLAIN and not value:
            self.holders.append(Holder("container", name, value))
            return
        with suppress(Exception):  # an object that answers as it likes is left alone
            self._look_into(value, name, depth)

    def _look_into(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self.names.append(name)
            if vars(value) and type(value) in (torch.Tensor, torch.nn.Parameter):  # what the user has put there
                self.holders.append(Holder("attributes", name, vars(value)))
                for key, part in list(vars(value).items()):
                    self._visit(part, key, depth + 1)
            for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
                for hook in (hooks or {}).values():
                    self._visit(hook, name, depth + 1)
            return
        if isinstance(value, type):
            if not of_library(value):
                self.holders.append(Holder("class", value.__name__, value))
                for key, part in vars(value).items():  # also what answers for an attribute, or is called as a method
                    if not (key.startswith("__") or isinstance(part, (types.FunctionType, staticmethod, classmethod))):
                        self._visit(part, key, depth + 1)
                self._methods(value, depth)
                self._visit(type(value), name, depth)
            return
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._visit(part, name, depth)
        elif isinstance(value, types.MethodType):
            self._visit(value.__func__, name, depth)
            self._visit(value.__self__, "self", depth)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, (list, dict, set, deque)):
            self._container(value, name, depth, of_torch=False)
        elif kind := kind_of(value):
            self.holders.append(Holder(kind, name, value))
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, (tuple, frozenset)):
            for part in value:
                self._visit(part, name, depth + 1)
        elif (inner := leads_to(value)) is not None:
            self._visit(inner, name, depth + 1)
        elif isinstance(value, queue.Queue):
            self.holders.append(Holder("attributes", name, vars(value), of_torch=True))  # its count of tasks
            self._container(value.queue, name, depth, of_torch=False)
        elif isinstance(value, queue.SimpleQueue):
            self.holders.append(Holder("queue", name, value))
            for part in self.holders[-1].read()[:MOST_ENTRIES]:
                self._visit(part, name, depth + 1)
        elif isinstance(value, contextvars.ContextVar):
            self.holders.append(Holder("context", value.name, value))
            self._visit(self.holders[-1].read(), name, depth + 1)
        elif type(value) in _WRAPPED:
            for part in vars(value).values():  # the dictionary, or the list, that it keeps what it has in
                self._visit(part, name, depth + 1)
        elif getattr(type(value), "_paramgraph_owner", False):  # what parameterize made leads to what it was given
            self._visit(getattr(value, "__wrapped__", None), name, depth)
        else:
            self._object(value, name, depth)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        wrapped = function.__dict__.get("__wrapped__")
        if isinstance(wrapped, types.FunctionType) and id(wrapped) not in self._seen:
            self._seen.add(id(wrapped))
            self._function(wrapped, depth)
        elif isinstance(wrapped, types.MethodType):  # a compiled one
            self._visit(wrapped, "", depth)
        library = is_library_code(function.__code__, function.__globals__)
        if library and hasattr(function, "_wrapped_by_lr_sched"):  # a schedule's, in the place of an optimizer's step
            self._visit(inspect.getclosurevars(function).nonlocals.get("opt_ref"), "self", depth)
        if library and not wraps_users(wrapped):
            return
        self.holders.append(Holder("attributes", function.__name__, function.__dict__))
        for key, value in list(function.__dict__.items()):
            if key != "__wrapped__":
                self._visit(value, key, depth + 1)
        if library:  # what `torch.no_grad()` makes of the user's has its name, and `step.n` is there
            return
        self.functions.append(function)
        self._stores |= stored_names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.holders.append(Holder("cell", name, cell))
            self._visit(self.holders[-1].read(), name, depth + 1)
        for name, value in defaults_of(function):  # a list there lives on from call to call
            self._visit(value, name, depth + 1)
        names = global_names(function.__code__)
        for name in sorted(names):
            if name in function.__globals__:
                self.holders.append(Holder("global", name, function.__globals__))
                self._visit(function.__globals__[name], name, depth + 1)
                if isinstance(module := function.__globals__[name], types.ModuleType):
                    self._module(module, names, depth)

    def _module(self, module: types.ModuleType, names: set[str], depth: int) -> None:
        """What a function asks a module of the user's for: ``helpers.scale(x)``, ``helpers.seen += 1``."""
        if depth > DEEP or is_of_library(module):
            self.holders += set_on_libraries(vars(module), names & self._stores)
            self._visit(os.environ if module is os and "environ" in names else None, "environ", depth)
            return
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if isinstance(value, types.ModuleType):
                self._module(value, names - {name}, depth + 1)
            else:
                self.holders.append(Holder("global", name, vars(module)))
                self._visit(value, name, depth + 1)

    def _methods(self, kind: type, depth: int) -> None:
        """What a class of the user's can do, its own classes before it included."""
        for each in kind.__mro__ if not of_library(kind) else ():
            for method in functions_of(each) if not of_library(each) else ():
                if id(method) not in self._seen:
                    self._seen.add(id(method))
                    self._function(method, depth + 1)

    def _container(self, value: Container, name: str, depth: int, *, of_torch: bool) -> None:
        self.holders.append(Holder("container", name, value, of_torch))
        if len(value) > MOST_ENTRIES and not of_torch:  # a model may have more parameters than that
            return
        for key, part in list(value.items()) if isinstance(value, dict) else [(None, part) for part in value]:
            called = key if of_torch and isinstance(key, str) else name  # of an optimizer's state: "step", "exp_avg"
            if of_torch and isinstance(part, (list, dict)):
                self._container(part, called, depth + 1, of_torch=True)
            else:
                first = len(self.holders)
                self._visit(part, called, depth + 1)
                if key is not None and len(self.holders) > first and self.holders[first].target is part:
                    self.holders[first].entry = key

    def _known_of(self, value: Any) -> tuple[bool, bool]:
        """Whether an object's class is a library's, and has slots: a model has many objects of few classes."""
        kind = type(value)
        if id(kind) not in self._kinds:
            self._kinds[id(kind)] = (kind, of_library(kind) and kind not in _NAMES, bool(slots_of(value)))
        return self._kinds[id(kind)][1:]

    def _object(self, value: Any, name: str, depth: int) -> None:
        of_library, has_slots = self._known_of(value)
        if has_slots and not of_library:
            self.holders.append(Holder("slots", name, value))
            for key, part in self.holders[-1].read().items():
                self._visit(part, key, depth + 1)
            self._visit(type(value), name, depth)
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        if isinstance(value, LazyModuleMixin) and value.has_uninitialized_params():  # type: ignore[misc]
            self.lazy.append(value)
            return
        is_module = isinstance(value, torch.nn.Module)
        torchs = (type(value).__module__ or "").startswith(_TORCHS)
        if not torchs and not is_module and of_library:
            self.holders += set_on_libraries(attributes, self._stores)
            return
        own = not torchs and not of_library
        if own:
            self._visit(type(value), name, depth)
        goes_on = is_module and of_library and not torchs
        self.holders.append(Holder("attributes", name, attributes, not own, goes_on, of=type(value)))
        for key, part in list(attributes.items()):
            if torchs and isinstance(part, (list, dict)) and not is_module:
                self._container(part, key, depth + 1, of_torch=True)
            elif is_module and key in ("_parameters", "_buffers", "_modules") and isinstance(part, dict):
                self.holders.append(Holder("container", key, part, True, goes_on and key == "_buffers"))
                for child_name, child in part.items():
                    self._visit(child, child_name, min(depth, DEEP - 1))
            else:
                self._visit(part, key, depth + 1)


def is_optimizers(holder: Holder) -> bool:
    """Whether it has the attributes of an optimizer of torch's."""
    optimizers = holder.of is not None and issubclass(holder.of, torch.optim.Optimizer)
    return optimizers and holder.of_torch and isinstance(holder.target.get("state"), dict)


def _is_set(value: Any) -> bool:
    """Whether it is a number, or a tensor of no backward pass, as a hook's that makes a weight anew would be."""
    return type(value) in NUMBERS or (type(value) is torch.Tensor and not value.requires_grad)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """A tensor, or those of a dictionary, as an optimizer has them for each parameter."""
    parts = value.values() if isinstance(value, dict) else [value]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _holds(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, deque))


def _holds_the_same(then: Any, now: Any, had: dict[int, Any]) -> bool:
    """Whether another list or dictionary has the entries now that the one in its place had ahead of the call.

    One that an earlier call has made is not known, and was as empty as this call leaves its own.
    """
    if type(then) is not type(now) or type(now) not in (list, dict, set, deque):
        return False
    return same(had[id(then)], now) if id(then) in had else not now


def _further(then: Any, now: Any, times: int) -> Any:
    """Where a number goes that went from ``then`` to ``now``; anything else stays as it is."""
    numbers = type(then) in AMOUNTS and type(now) in AMOUNTS
    return now + (now - then) * times if numbers and now != then else now
