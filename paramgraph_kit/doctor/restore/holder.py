"""Something of Python's that holds values and can be written: a variable, a container, an object, a generator."""

from __future__ import annotations

import io
import types
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.restore.classes import of_library
from paramgraph_kit.doctor.restore.simple_queues import refill, waiting_in
from paramgraph_kit.driver.host_random import put_back, state_of

MOST_BYTES = 1 << 26  # of an array that is copied
_COUNTS = 512  # bytes of an array that may count
_CONTAINERS = (list, dict, set, deque)
PLAIN: dict[type, Any] = {**{kind: kind for kind in _CONTAINERS}, OrderedDict: dict}
_VALUES = (*NUMBERS, complex, str, bytes)  # which are the same where they are equal


@dataclass(slots=True)
class Holder:
    """Something that holds values and can be written: a cell, a global name, or a container."""

    # "cell", "global", "container", "queue", "attributes", "slots", "class", "file", "array", "generator", "iterator",
    # "memory", "environment"
    kind: str
    name: str  # of the variable, or under which the container was found
    target: Any
    of_torch: bool = False  # torch's own bookkeeping, not the user's
    goes_on: bool = False  # from call to call all the same, as what a library's module counts
    entry: Any = None  # the key under which a dictionary has it, where that gives it its name
    of: type | None = None  # the class of the object whose attributes these are

    def read(self) -> Any:
        """What it holds now; containers are copied, one level deep."""
        if self.kind in ("container", "attributes"):  # nearly all are
            return self._copied()
        if self.kind == "cell":
            try:
                return self.target.cell_contents
            except ValueError:
                return None
        if self.kind == "global":
            return self.target.get(self.name)
        if self.kind == "context":
            return self.target.get(None)
        if self.kind == "class":
            return _values_of(self.target)
        if self.kind == "file":
            return end_of(self.target)
        if self.kind == "array":
            return self.target[:] if isinstance(self.target, array) else self.target.copy()
        if self.kind == "generator":
            return state_of(self.target)
        if self.kind == "iterator":
            return self.target.at
        if self.kind == "queue":
            return waiting_in(self.target)
        if self.kind == "memory":
            return {name: getattr(self.target, name) for name in _fields_of(self.target)}
        if self.kind == "environment":
            return dict(self.target)
        if self.kind == "slots":
            return {
                name: slot.__get__(self.target) for name, slot in slots_of(self.target) if _is_set(slot, self.target)
            }
        return self._copied()

    def _copied(self) -> Any:
        # Of a subclass only what it holds counts, and not what it answers.
        kind = type(self.target)
        if issubclass(kind, OrderedDict):  # its order is its own: `move_to_end` leaves that of the dict as it is
            return dict(OrderedDict.items(self.target)) if self.target else {}
        if issubclass(kind, dict) and kind not in PLAIN:
            return dict(dict.items(self.target))  # dict.copy() would ask its keys()
        known = PLAIN.get(kind) or next(each for each in _CONTAINERS if issubclass(kind, each))
        return known.copy(self.target)

    @property
    def is_plain(self) -> bool:
        """Whether it is a list, a dictionary or a set that answers as Python's do."""
        return self.kind == "container" and type(self.target) in PLAIN

    @property
    def told_as(self) -> str:
        """The kind of a change of it."""
        return "container" if self.kind in ("queue", "environment") else self.kind

    def is_same(self, value: Any) -> bool:
        """Whether it still holds ``value``, which ``read`` gave."""
        if self.kind in ("container", "attributes") and type(self.target) in PLAIN:
            same_order = type(self.target) is not OrderedDict or [*self.target] == [*value]
            return not (self.target or value) or (_same_parts(self.target, value) and same_order)
        if self.kind == "array":
            return _bytes(self.target) == _bytes(value)
        if self.kind == "generator":
            return False  # rarely many, and quicker written than compared
        return same(self.read(), value)

    def write(self, value: Any) -> None:
        """Hold ``value`` again."""
        if self.kind == "cell":
            self.target.cell_contents = value
        elif self.kind == "global":
            self.target[self.name] = value
        elif self.kind == "context":
            self.target.set(value)
        elif self.kind == "class":
            for name in _values_of(self.target).keys() - value.keys():
                delattr(self.target, name)
            for name, one in value.items():
                setattr(self.target, name, one)
        elif self.kind == "slots":
            for name, slot in slots_of(self.target):
                if name in value:
                    slot.__set__(self.target, value[name])
                elif _is_set(slot, self.target):
                    slot.__delete__(self.target)
        elif self.kind == "file":
            if isinstance(self.target, (io.StringIO, io.BytesIO)):  # what is in a real file stays there
                self.target.seek(value)
                self.target.truncate()
        elif self.kind == "iterator":
            self.target.at = value
        elif self.kind == "queue":
            refill(self.target, value)
        elif self.kind == "memory":
            for name, one in value.items():
                setattr(self.target, name, one)
        elif self.kind == "environment":
            self.target.clear()
            self.target.update(value)
        elif self.kind == "generator":
            put_back(self.target, value)
        elif self.kind == "array" and not isinstance(self.target, (array, bytearray)):
            self.target[...] = value
        elif self.kind == "array" or isinstance(self.target, list):
            self.target[:] = value
        elif isinstance(self.target, OrderedDict):  # `dict.clear` would leave its order with keys that are gone
            OrderedDict.clear(self.target)
            for key, one in value.items():
                OrderedDict.__setitem__(self.target, key, one)
        else:
            kind: Any = next(kind for kind in _CONTAINERS if issubclass(type(self.target), kind))
            kind.clear(self.target)
            (kind.extend if kind is deque else kind.update)(self.target, value)


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two states: what is called ``name`` held ``before`` and then ``after``."""

    kind: str  # of the holder
    name: str
    before: Any
    after: Any
    owner: str = ""  # what holds it is called so
    key: Any = None  # of a dictionary, the entry
    entry: Any = None  # of a container in a dictionary, the key under which that has it

    @property
    def place(self) -> tuple[str, str, str, Any]:
        """By what two changes are known to be of one thing."""
        return self.kind, self.owner, self.name, self.key

    def entries(self, kinds: tuple[type, ...] = NUMBERS) -> list[Change]:
        """The same for each entry, where a dictionary, or a list, has other values of these kinds at the same places.

        Where it has other tensors beside them, these are one more change.
        """
        was, has = self.by_place()
        if self.kind != "container" or not has or was.keys() != has.keys():
            return [self]
        pairs = [(key, then, has[key]) for key, then in was.items() if not same(then, has[key])]
        numbers = [(key, then, now) for key, then, now in pairs if _are(kinds, then, now)]
        alone = [Change(self.kind, self.name, then, now, self.owner, key) for key, then, now in numbers]
        rest = [(key, then, now) for key, then, now in pairs if not _are(kinds, then, now)]
        if not alone or not all(isinstance(now, torch.Tensor) for _, _, now in rest):
            return [self]
        before, after = {key: then for key, then, _ in rest}, {key: now for key, _, now in rest}
        return [*alone, *([Change(self.kind, self.name, before, after, self.owner)] if rest else [])]

    def by_place(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """What it held and holds by key, or index; nothing of a list whose entries move along: ``pop``, ``append``."""
        was, has = self.before, self.after
        if isinstance(was, dict) and isinstance(has, dict):
            return was, has
        if not (type(was) is type(has) is list) or len(was) != len(has):
            return {}, {}
        along = len(was) > 1 and (same(was[1:], has[:-1]) or same(was[:-1], has[1:]))
        return ({}, {}) if along else (dict(enumerate(was)), dict(enumerate(has)))


def _are(kinds: tuple[type, ...], *values: Any) -> bool:
    return all(isinstance(each, kinds) for each in values)


def is_array(value: Any) -> bool:
    """Whether it holds numbers that code can write in place: an array of NumPy's, or of Python's."""
    if isinstance(value, (array, bytearray)):
        return True
    module = type(value).__module__
    return module == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject and value.nbytes <= MOST_BYTES


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytearray) else value.tobytes()


def slots_of(value: Any) -> list[tuple[str, Any]]:
    """What a class has in place of a dictionary: names and descriptors."""
    return [
        (name, slot)
        for kind in type(value).__mro__
        for name, slot in vars(kind).items()
        if isinstance(slot, types.MemberDescriptorType) and not of_library(kind)
    ]


def _fields_of(value: Any) -> list[str]:
    """The fields of a structure of C's; a number of C's has its value alone."""
    return [each[0] for each in getattr(value, "_fields_", (("value",),))]


def _is_set(slot: Any, owner: Any) -> bool:
    try:
        slot.__get__(owner)
    except AttributeError:
        return False
    return True


def end_of(file: io.IOBase) -> int | None:
    """Where a file is written next; None for one that cannot be written, or cannot tell."""
    try:
        return file.tell() if file.writable() and file.seekable() else None
    except (OSError, ValueError):  # it is closed, or being read line by line
        return None


def _values_of(kind: type) -> dict[str, Any]:
    """What a class holds besides its functions."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
    }


def same(a: Any, b: Any) -> bool:
    """Identity for objects, value for numbers and text, and for containers that of their parts."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _VALUES):
        return bool(a == b) or (a != a and b != b)  # nan is itself
    return isinstance(a, (dict, list, tuple, deque, set)) and _same_parts(a, b)


def _same_parts(a: Any, b: Any) -> bool:
    """The same of two containers of one kind."""
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        if all(map(is_, a, b)) and all(map(is_, a.values(), b.values())):
            return True  # nearly always, and at the speed of C
        return all(key in b and _same_part(value, b[key]) for key, value in a.items())
    if isinstance(a, set):
        return bool(a == b)
    return all(map(is_, a, b)) or all(_same_part(x, y) for x, y in zip(a, b, strict=True))


def _same_part(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, _VALUES) and type(a) is type(b) and same(a, b))


def further(then: Any, now: Any, times: int) -> Any:
    """Where an array that counts goes: whole numbers move on, as if by so many calls; any other stays as it is."""
    if len(_bytes(now)) > _COUNTS or len(_bytes(then)) != len(_bytes(now)):
        return now
    was, has = np.asarray(then), np.asarray(now)
    if has.dtype.kind not in "iuf" or not np.array_equal(has, np.trunc(has)) or not np.array_equal(was, np.trunc(was)):
        return now  # data, and no counts
    with np.errstate(all="ignore"):
        moved = has.astype(np.float64) + (has.astype(np.float64) - was.astype(np.float64)) * times
    kept = moved.astype(has.dtype)
    if not np.array_equal(kept.astype(np.float64), moved):
        return now  # a byte has an end
    if isinstance(now, array):
        return array(now.typecode, kept.tolist())
    return bytearray(kept.tobytes()) if isinstance(now, bytearray) else kept
