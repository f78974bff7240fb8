"""Something that holds values and can be written: an object, a container, a variable, the gradient of a tensor."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType
from typing import Any

from paramgraph_kit.backend.raw import items_of, put_item, refill, refill_set
from paramgraph_kit.driver.files import is_library

PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a function: reloading a module writes them
EMPTY = object()  # in a closure's variable that holds nothing yet


@dataclass(slots=True)
class Holder:
    """Something that holds values and can be written."""

    # "attributes", "dict", "sequence", "set", "cell", "global", "class", "slots", "function", "bytes", "context",
    # "asked", "cached", "data" or "gradient"
    kind: str
    name: str  # how the step's code gets there: "model.layers[0]"
    target: Any
    key: str = ""  # of a global name
    whole: bool = False  # all of it counts, whatever the code names
    ask: Callable[[], Any] | None = None  # of an object that only answers: nobody writes it
    owner: type | None = None  # the class of the object whose attributes they are

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
                return {"": tuple([value for _, value in items_of(self.target)])}
            case "asked":
                assert self.ask is not None
                return {"": self.ask()}
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
                return {"": bytes(memoryview(self.target).cast("B"))}
            case "function":
                return {name: getattr(self.target, name) for name in PARTS}
            case "global":
                return {self.key: self.target.get(self.key, EMPTY)}
            case "class":
                own = {k: v for k, v in vars(self.target).items() if not k.startswith("__") or callable(v)}
                return own | {"__bases__": self.target.__bases__}
            case "slots":
                return {k: getattr(self.target, k, EMPTY) for k in slots_of(type(self.target))}
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
                now = self.read()
                for name, value in contents.items():
                    if now.get(name, EMPTY) is not value:
                        setattr(self.target, name, value)
            case "asked" | "cached":  # by what a call computes, and what another one may find
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
            case "asked" | "cached":
                pass
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


def cached_by(function: Any) -> dict[Any, Any]:
    """What ``functools.cache`` and ``functools.lru_cache`` keep.

    >>> import functools
    >>> double = functools.cache(lambda x: [2 * x])
    >>> double(3) is cached_by(double)[3]
    True
    """
    own, parts = getattr(function, "__dict__", None), gc.get_referents(function)
    known: dict[Any, Any] = next((x for x in parts if type(x) is dict and x is not own), {})
    if not any(type(x).__name__ == "_lru_list_elem" for x in known.values()):
        return dict(known)
    return {id(x): x for x in parts if x is not own and x is not known}  # one that forgets tells no keys


_slots: dict[type, tuple[str, ...]] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of the slots of a class and its bases, as they are written there: of libraries those of no C code."""
    if kind not in _slots:
        found = [vars(each) for each in kind.__mro__ if not of_library(kind) or "__slots__" in vars(each)]
        _slots[kind] = tuple(k for own in found for k, v in own.items() if isinstance(v, MemberDescriptorType))
    return _slots[kind]


_IMMUTABLE, _HEAP = 1 << 8, 1 << 9  # of a type's flags: C's own are immutable, a class statement's are on the heap
_libraries: dict[type, bool] = {}


def of_library(kind: type) -> bool:
    """Whether a class is an installed package's, Python's own or ours."""
    if kind not in _libraries:
        _libraries[kind] = _is_of_library(kind)
    return _libraries[kind]


def _is_of_library(kind: type) -> bool:
    if kind.__module__ == "builtins":  # so says a class of code that exec has run without a name, too
        return kind.__flags__ & (_HEAP | _IMMUTABLE) != _HEAP
    if kind.__module__ == "__main__":  # whoever runs the program, as `python -m` does, may be a library; it is none
        return False
    if file := getattr(sys.modules.get(kind.__module__), "__file__", None):
        return is_library(file)
    for value in vars(kind).values():
        if isinstance(value, FunctionType) and not value.__code__.co_filename.startswith("<"):
            return is_library(value.__code__.co_filename)
    try:
        return is_library(inspect.getfile(kind))
    except (TypeError, OSError):
        return kind.__module__ != "builtins"
