"""Places that a traced function may read, and whether they hold today what they held when it was traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from types import FunctionType
from typing import Any

from paramgraph_kit.backend.raw import kind_of, refill, refill_set
from paramgraph_kit.driver.dict_versions import Versions
from paramgraph_kit.driver.native.objects import Kinds, dictionary_of

MISSING = object()  # where there is nothing under a name


@dataclass(slots=True)
class Watched:
    """One holder of values: ``read()`` gives today's in the order of ``keys``, ``values`` are those that were found."""

    name: str  # how the user's code gets there: "model.config"
    # "entries" of a dict or a class by name, "functions" of it that nobody puts back,
    # all of a "dict", its "names", "items", "cell", "class", "contents", ...
    kind: str
    holder: Any
    keys: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    versioned: bool = False  # ``holder`` is a dictionary that is seldom written

    @property
    def identity(self) -> int:
        """What tells its holder from others while it lives."""
        if isinstance(self.holder, ClassEntries) or self.kind == "contents":
            return id(self.holder.owner)
        return id(self.holder)

    def read(self) -> tuple[Any, ...]:
        """What it holds now."""
        holder = self.holder
        match self.kind:
            case "entries" | "functions":
                return tuple([holder.get(key, MISSING) for key in self.keys])
            case "dict":
                kind = kind_of(holder) if isinstance(holder, dict) else type(holder)
                return (*kind.keys(holder), *kind.values(holder))
            case "items" | "names":
                return tuple(kind_of(holder).__iter__(holder))
            case "class":
                return type(holder), dictionary_of(holder)
            case "cell":
                try:
                    return (holder.cell_contents,)
                except ValueError:  # not yet bound
                    return (MISSING,)
            case "attributes":
                return tuple([getattr(holder, key, MISSING) for key in self.keys])
            case "parts":  # an answer of several, which nobody puts back
                return tuple(holder())
            case _:
                return (holder(),)

    def same(self) -> bool:
        """Whether it holds the very objects that were found."""
        now = self.read()
        return len(now) == len(self.values) and all(map(is_, now, self.values))

    def changed(self) -> str:
        """The first place that holds something else, as the user's code names it."""
        now = self.read()
        if self.kind in ("entries", "attributes", "functions"):
            key = next(key for key, a, b in zip(self.keys, now, self.values, strict=True) if a is not b)
            return f"{self.name}.{key}" if self.name else str(key)
        return self.name

    def put_back(self) -> None:
        """Let it hold what was found."""
        holder, values = self.holder, self.values
        match self.kind:
            case "entries" | "attributes":
                for key, value in zip(self.keys, values, strict=True):
                    self._put(key, value)
            case "dict":
                half = len(values) // 2
                refill(holder, dict(zip(values[:half], values[half:], strict=True)))
            case "items":
                if isinstance(holder, set):
                    refill_set(holder, values)
                else:
                    refill(holder, dict(enumerate(values)))
            case "class":
                holder.__class__ = values[0]
                if values[1] is not None:
                    holder.__dict__ = values[1]
            case "contents":
                holder.put_back(values[0])
            case "cell":
                if values[0] is MISSING:
                    del holder.cell_contents
                else:
                    holder.cell_contents = values[0]

    def _put(self, key: str, value: Any) -> None:
        if self.kind == "entries" and isinstance(self.holder, dict):
            if value is not MISSING:
                self.holder[key] = value
            else:
                self.holder.pop(key, None)
            return
        owner = getattr(self.holder, "owner", self.holder)
        if value is not MISSING:
            setattr(owner, key, value)
        elif key in vars(owner) if isinstance(self.holder, ClassEntries) else hasattr(owner, key):  # or inherited
            delattr(owner, key)


class ClassEntries:
    """The entries of a class's own dictionary: read like those of a dict, written by ``setattr``."""

    __slots__ = ("get", "owner")

    def __init__(self, owner: type) -> None:
        self.owner = owner
        self.get = vars(owner).get


class Unchanged:
    """Whether nothing has been written to any of these since: asked at every call, so mostly in C.

    Dictionaries that are seldom written have a version (see ``driver.dict_versions``); empty ones
    must still be empty (8 ns), and objects of the classes that they were of, with the dictionaries that they had. The
    rest is compared object by object (40 ns each).
    """

    def __init__(self, watched: Sequence[Watched], dicts: Sequence[dict[Any, Any]]) -> None:
        versioned = list({id(d): d for d in (*dicts, *(w.holder for w in watched if w.versioned))}.values())
        self._empty = [each for each in versioned if not each]
        self._dicts = [each for each in versioned if each]
        self._versions = Versions(self._dicts)
        entries = [w for w in watched if w.kind == "entries" and not w.versioned]
        cells = [w for w in watched if w.kind == "cell"]
        self._owners = [(w.holder.get, key) for w in entries for key in w.keys]
        self._cells = [w.holder for w in cells]
        self._known = [*chain.from_iterable(w.values for w in entries), *(w.values[0] for w in cells)]
        classes = [w for w in watched if w.kind == "class"]
        self._kinds = Kinds([w.holder for w in classes])
        functions = [w for w in watched if w.kind == "attributes" and type(w.holder) is FunctionType]
        self._parts = [(attrgetter(*w.keys), w.holder) for w in functions]
        self._known += chain.from_iterable(w.values for w in functions)
        looked_at = {id(w) for w in (*entries, *cells, *classes, *functions)}
        self._rest = [w for w in watched if not w.versioned and id(w) not in looked_at]

    def __call__(self) -> bool:
        """Whether that is so."""
        if any(self._empty) or not self._versions():
            return False
        if not self._kinds.same():
            return False
        now = [get(key, MISSING) for get, key in self._owners]
        try:
            now += [cell.cell_contents for cell in self._cells]
        except ValueError:  # a variable that was unbound
            return False
        for parts, function in self._parts:
            now += parts(function)
        return all(map(is_, now, self._known)) and all(each.same() for each in self._rest)
