"""Places that hold values, which a call asks for: in C++ where it is built, in one Python expression until then."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from paramgraph_kit.driver.native.build import checks

ABSENT = object()  # what a global name stands for that is not there
# As C++ numbers them; of other kinds it knows nothing.
_KINDS = {"global": 0, "cell": 1, "function": 2, "list": 3, "set": 4, "class": 5, "dict": 6}


@dataclass(frozen=True, slots=True)
class Place:
    """One of them and what it holds."""

    kind: str  # "global", "cell", "function", "list", "deque", "set", "class" or "dict"
    target: Any
    values: tuple[Any, ...]  # of a class or dict each key before its value; of a function its code and its defaults
    key: Any = None  # of a global name; of a class its bases

    @property
    def native(self) -> bool:
        """Whether C++ can ask."""
        if self.kind == "global":
            return type(self.target) is dict and type(self.key) is str
        if self.kind == "dict":  # an ordered one may be put in another order, of which only its own methods tell
            return len(self.values) <= 2
        return self.kind in _KINDS

    @property
    def row(self) -> tuple[Any, ...]:
        """As C++ takes it."""
        values = () if self.values == (ABSENT,) else self.values
        return _KINDS[self.kind], self.target, self.key, values


class Places:
    """Some places as they were; it holds what they held.

    >>> space = {"scale": 2.0}
    >>> places = Places([Place("global", space, (space["scale"],), "scale")])
    >>> places.same()
    True
    >>> space["scale"] = 3.0
    >>> places.same()
    False
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = list(places)
        self._python = _expression(self._places)
        self._rows = [each.row for each in self._places if each.native]
        others = [each for each in self._places if not each.native]
        self.rest = _expression(others) if others else None  # asked besides ``check``
        self._check: Any = None

    @property
    def check(self) -> Any:
        """For ``unchanged`` of the module in C++; None until that is built. Whoever has it holds this, too."""
        if self._check is None and (native := checks()) is not None:
            self._check = native.places(self._rows)
        return self._check

    def same(self) -> bool:
        """Whether nothing at all has changed in any of them, by identity; False may be said of what is alike."""
        native = checks()
        if native is None:
            return self._python()
        return bool(native.unchanged((self.check,))) and (self.rest is None or self.rest())


def _expression(places: Sequence[Place]) -> Callable[[], bool]:
    scope: dict[str, Any] = {"all": all, "map": map, "len": len, "vars": vars, "is_": is_, "ABSENT": ABSENT}
    tests = []
    for n, place in enumerate(places):
        values = place.values
        scope |= {f"t{n}": place.target, f"k{n}": place.key, f"v{n}": values}
        match place.kind:
            case "global":
                scope[f"v{n}"] = values[0]
                tests.append(f"t{n}.get(k{n}, ABSENT) is v{n}")
            case "cell":
                scope[f"v{n}"] = values[0]
                tests.append(f"t{n}.cell_contents is v{n}")
            case "function":
                parts = ("__code__", "__defaults__", "__kwdefaults__")
                tests += [f"t{n}.{part} is v{n}[{k}]" for k, part in enumerate(parts)]
            case "class":
                scope |= {f"n{n}": values[::2], f"v{n}": values[1::2]}
                tests.append(f"t{n}.__bases__ is k{n} and len(vars(t{n})) == {len(values) // 2}")
                tests.append(f"all(map(is_, vars(t{n}), n{n})) and all(map(is_, vars(t{n}).values(), v{n}))")
            case "dict":
                scope |= {f"n{n}": values[::2], f"v{n}": values[1::2], f"len{n}": OrderedDict.__len__}
                scope |= {f"keys{n}": OrderedDict.__iter__, f"held{n}": OrderedDict.values}
                tests.append(f"len{n}(t{n}) == {len(values) // 2}")
                tests += [f"all(map(is_, keys{n}(t{n}), n{n})) and all(map(is_, held{n}(t{n}), v{n}))"] * bool(values)
            case _:
                base: Any = {"list": list, "deque": deque, "set": set}[place.kind]
                scope |= {f"len{n}": base.__len__, f"iter{n}": base.__iter__}
                tests.append(f"len{n}(t{n}) == {len(values)} and all(map(is_, iter{n}(t{n}), v{n}))")
    body = f" try: return {' and '.join(tests) or 'True'}"  # places are numbered, never named
    exec(f"def same():\n{body}\n except ValueError: return False", scope)  # a variable that holds nothing any more
    same: Callable[[], bool] = scope["same"]
    return same
